"""What Kubernetes, our operator and SGLang's clients ask of a server's state."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl

from skirret_api import __version__
from skirret_api.errors import InvalidRequest, NotFound, Unavailable
from skirret_server.api import wire
from skirret_server.api.answer import Reply
from skirret_server.api.exchange import Request
from skirret_server.api.generation import Generation, Task, Work
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.metrics import CONTENT_TYPE, Metrics
from skirret_server.api.prompts import Prompt
from skirret_server.api.served import Served
from skirret_server.core import Sampling
from skirret_server.text.choice import TextRules

STEP_LIMIT = 30.0  # seconds one engine step may take before the server stops being ready
_LONGEST_WAIT = 60.0  # seconds
_NEWS_POLL = 0.1  # seconds


class Probes:
    def __init__(self, lifecycle: Lifecycle, metrics: Metrics, uptime: Callable[[], float]) -> None:
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._uptime = uptime
        self._proof: asyncio.Lock = asyncio.Lock()
        self._epoch = secrets.token_hex(8)  # of this life of the process

    async def health(self, request: Request) -> Reply:
        """The process lives."""
        return Reply(b"")

    async def health_generate(self, request: Request) -> Reply:
        """A token can be generated: proven by generating one, once."""
        served = self._lifecycle.admit()
        async with self._proof:
            if not self._lifecycle.has_generated:
                await prove(self._lifecycle)
        _check_steps(served)
        return Reply(b"")

    async def ready(self, request: Request) -> Reply:
        """Traffic may come here. Never generates."""
        served = self._lifecycle.admit()
        if not self._lifecycle.has_generated:
            raise Unavailable("The model is loaded and has not generated its first token yet.")
        _check_steps(served)
        return Reply(b"")

    async def status(self, request: Request) -> Reply:
        return Reply.of(self._status())

    async def accounting(self, request: Request) -> Reply:
        """What live requests hold. All zero when there is none."""
        served = self._lifecycle.admit()
        stats = served.engine.stats()
        return Reply.of(
            {
                "requests": self._lifecycle.running,
                "sequences": sum(stats.running.values()) + sum(stats.waiting.values()),
                "pages": stats.held_pages,
                "grammars": stats.grammars,
                "detokenisers": len(self._lifecycle.texts),
            }
        )

    async def cache_events(self, request: Request) -> Reply:
        """What `internal.CACHE_EVENTS` promises."""
        if not request.caller.is_internal:
            raise NotFound(f"Invalid URL ({request.method} {request.path})")
        engine = self._lifecycle.admit().engine
        asked = dict(parse_qsl(request.query))
        after, wait = _number(asked, "after", -1), _number(asked, "wait", 0)
        if asked.get("epoch") != self._epoch:
            after = -1
        deadline = time.monotonic() + min(wait, _LONGEST_WAIT)
        news = engine.cache_news(after)
        while news.sequence == after and time.monotonic() < deadline:
            await asyncio.sleep(_NEWS_POLL)
            news = engine.cache_news(after)
        return Reply.of(
            {
                "epoch": self._epoch,
                "sequence": news.sequence,
                "full": news.is_full,
                "stored": news.stored,
                "removed": news.removed,
            }
        )

    async def metrics(self, request: Request) -> Reply:
        return Reply(self._metrics.page(), content_type=CONTENT_TYPE)

    def _status(self) -> dict[str, Any]:
        lifecycle = self._lifecycle
        status, served = lifecycle.status, lifecycle.served
        stats = served.engine.stats() if served else None
        running = dict(stats.running) if stats else {}
        waiting = dict(stats.waiting) if stats else {}
        return {
            "phase": status.phase,
            "ready": lifecycle.is_ready,
            "percent": status.percent,
            "eta_seconds": status.eta_seconds,
            "bytes_per_second": status.bytes_per_second,
            "uptime_seconds": round(self._uptime(), 3),
            "requests": lifecycle.running,
            "running": sum(running.values()),
            "waiting": sum(waiting.values()),
            "running_by_lane": running,
            "waiting_by_lane": waiting,
            "kv_usage": stats.kv_usage if stats else 0.0,
            "models": list(served.names) if served else [],
            "version": __version__,
        }


def _number(asked: Mapping[str, str], name: str, default: int) -> int:
    """Raises InvalidRequest."""
    try:
        return int(asked.get(name, default))
    except ValueError:
        raise InvalidRequest(f"'{name}' must be a whole number.", param=name) from None


def _check_steps(served: Served) -> None:
    stuck = served.engine.stats().step_running_seconds
    if stuck > STEP_LIMIT:
        raise Unavailable(f"The engine has been in one step for {stuck:.0f} s.")


async def prove(lifecycle: Lifecycle) -> None:
    """Generates one token and remembers it. Raises ApiError."""
    served = lifecycle.admit()
    token = next(iter(served.engine.info.eos_token_ids), 0)
    work = Work(
        id=wire.new_id("health"),
        request_id="health",
        tasks=[Task(Prompt([token]), Sampling(max_tokens=1, temperature=0.0), TextRules())],
    )
    async with aclosing(Generation(served.engine, served.tokenizer, work).steps()) as steps:
        async for _ in steps:
            lifecycle.has_generated = True
