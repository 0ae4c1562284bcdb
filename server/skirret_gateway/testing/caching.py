"""A scripted server that tells of its cache as internal.CACHE_EVENTS says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from skirret_api import internal
from skirret_gateway.testing.scripted import Behaviour, Connection, ScriptedServer, Seen, answer

Event = tuple[str, str]  # "stored" or "removed", a block


class CachingServer(ScriptedServer):
    """What it is asked otherwise it answers as its script says."""

    def __init__(self, default: Behaviour | None = None) -> None:
        super().__init__(default)
        self.asked = 0  # for news
        self._life = 1
        self._has: set[str] = set()
        self._events: list[Event] = []
        self._oldest = 0  # events before are forgotten
        self._changed = asyncio.Event()

    def store(self, blocks: Iterable[bytes]) -> None:
        self._note("stored", blocks)

    def remove(self, blocks: Iterable[bytes]) -> None:
        self._note("removed", blocks)

    def forget(self) -> None:
        """Whoever asks for what came before now is told everything."""
        self._oldest = len(self._events) + 1
        self._wake()

    def start_anew(self) -> None:
        """With an empty cache, as a new process."""
        self._life += 1
        self._has.clear()
        self._events.clear()
        self._oldest = 0
        self._wake()

    def _note(self, kind: str, blocks: Iterable[bytes]) -> None:
        names = [block.hex() for block in blocks]
        self._events += [(kind, name) for name in names]
        self._has = self._has.union(names) if kind == "stored" else self._has.difference(names)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _behave(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parts = urlsplit(seen.target)
        if parts.path != internal.CACHE_EVENTS:
            await super()._behave(seen, reader, writer)
            return
        self.asked += 1
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        news = await self._news(query.get("epoch", ""), int(query["after"]), float(query["wait"]))
        await answer(news)(seen, Connection(writer))

    async def _news(self, epoch: str, after: int, wait: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(wait):
                while epoch == str(self._life) and self._oldest <= after == len(self._events):
                    await self._changed.wait()
        except TimeoutError:
            pass
        is_full = epoch != str(self._life) or after < self._oldest
        changed = {name: kind for kind, name in self._events[max(after, 0) :]}
        return {
            "epoch": str(self._life),
            "sequence": len(self._events),
            "full": is_full,
            "stored": sorted(self._has) if is_full else _of("stored", changed),
            "removed": [] if is_full else _of("removed", changed),
        }


def _of(kind: str, changed: dict[str, str]) -> list[str]:
    return [name for name, last in changed.items() if last == kind]
