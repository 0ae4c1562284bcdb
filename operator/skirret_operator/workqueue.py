"""A queue of keys: many events are one piece of work, and no key is worked on twice at once."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")

_FIRST_PAUSE = 0.1  # seconds
_LONGEST_PAUSE = 60.0


class WorkQueue(Generic[Key]):
    """`add` at any time; `take`, then `done`. A key added while it is worked on comes again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ready: dict[Key, None] = {}  # in order of arrival
        self._busy: set[Key] = set()
        self._again: set[Key] = set()  # added while busy
        self._later: dict[Key, float] = {}  # the earliest time asked for
        self._timers: list[tuple[float, int, Key]] = []  # a heap; `_later` says which still count
        self._sequence = 0
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready) + len(self._again)

    def add(self, key: Key) -> None:
        self._later.pop(key, None)
        if key in self._busy:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._changed.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Adds it by then; sooner if anybody else asks for it sooner."""
        at = self._clock() + seconds
        if at < self._later.get(key, float("inf")):
            self._later[key] = at
            self._sequence += 1
            heapq.heappush(self._timers, (at, self._sequence, key))
            self._changed.set()

    def retry(self, key: Key) -> None:
        """Adds it after a pause that doubles with each failure in a row."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, min(_FIRST_PAUSE * 2**failures, _LONGEST_PAUSE))

    def forget(self, key: Key) -> None:
        """It went well: the next failure is the first."""
        self._failures.pop(key, None)

    async def take(self) -> Key:
        while True:
            self._changed.clear()
            self._ring()
            if self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._busy.add(key)
                if self._ready:
                    self._changed.set()  # for the others who wait
                return key
            pause = self._timers[0][0] - self._clock() if self._timers else None
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _ring(self) -> None:
        """Moves what is due to the ready ones."""
        while self._timers and self._timers[0][0] <= self._clock():
            at, _, key = heapq.heappop(self._timers)
            if self._later.get(key) == at:
                self.add(key)
