"""The line that tells, every few seconds of work, how the engine is doing."""

from __future__ import annotations

import logging

from skirret_server.core import Stats

_log = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds of work between two lines


class Report:
    """Told after each step; what it says is about the steps since its last line."""

    def __init__(self, now: float, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._began = now
        self._before: Stats | None = None

    def step(self, stats: Stats, now: float) -> None:
        before = self._before
        if before is None:  # the first step after some rest
            self._began, self._before = now, stats
            return
        seconds = now - self._began
        if seconds >= self._interval:
            _log.info("%s", line(before, stats, seconds))
            self._began, self._before = now, stats

    def rest(self) -> None:
        """There is nothing to do: idle time is not to count in the next line."""
        self._before = None


def line(before: Stats, now: Stats, seconds: float) -> str:
    """As SGLang writes it, so that what reads its logs reads ours."""
    steps = max(now.steps - before.steps, 1)
    asked = now.cache_query_tokens - before.cache_query_tokens
    hit = now.cache_hit_tokens - before.cache_hit_tokens
    return (
        f"Decode batch, #running-req: {sum(now.running.values())}, "
        f"#batch-lane: {now.running['batch']}, token usage: {now.kv_usage:.2f}, "
        f"gen throughput (token/s): "
        f"{(now.generation_tokens - before.generation_tokens) / seconds:.2f}, "
        f"#queue-req: {sum(now.waiting.values())}, "
        f"step (ms): {(now.step_seconds - before.step_seconds) / steps * 1e3:.1f}, "
        f"cache hit: {hit / asked if asked else 0.0:.2f}, "
        f"#retracted-req: {now.retractions - before.retractions}"
    )
