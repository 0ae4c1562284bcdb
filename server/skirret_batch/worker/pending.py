"""Which line is asked next. Pure.

Suspects, the lines that were in flight when an engine died, go first. One that saw two deaths runs
alone; if the engine dies twice more, it is that line.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_ALONE_FROM = 2  # deaths
_GUILTY_FROM = 4


@dataclass(slots=True, eq=False)
class Work:
    """One line still to be answered."""

    ordinal: int
    shard: int
    tries: int = 0  # that ended in a server's fault
    deaths: int = 0  # of an engine while it was in flight

    @property
    def is_alone(self) -> bool:
        return self.deaths >= _ALONE_FROM

    @property
    def is_poison(self) -> bool:
        return self.deaths >= _GUILTY_FROM


class Pending:
    def __init__(self) -> None:
        self._fresh: deque[Work] = deque()
        self._suspects: deque[Work] = deque()
        self._later: list[tuple[float, int, Work]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._suspects) + len(self._later)

    def add(self, works: Iterable[Work]) -> None:
        self._fresh.extend(works)

    def put_back(self, work: Work) -> None:
        """It was not carried out; it is the next again."""
        (self._suspects if work.deaths else self._fresh).appendleft(work)

    def suspect(self, work: Work) -> None:
        self._suspects.append(work)

    def retry(self, work: Work, at: float) -> None:
        self._count += 1  # breaks ties
        heapq.heappush(self._later, (at, self._count, work))

    def take(self, now: float, in_flight: int) -> Work | None:
        """The next line; None when none is due, or the next must wait to be alone."""
        while self._later and self._later[0][0] <= now:
            self.put_back(heapq.heappop(self._later)[2])
        if self._suspects:
            if self._suspects[0].is_alone and in_flight:
                return None
            return self._suspects.popleft()
        return self._fresh.popleft() if self._fresh else None

    def wait(self, now: float) -> float:
        """How long until a line is due that isn't now."""
        return max(0.0, self._later[0][0] - now) if self._later else float("inf")

    def drop(self, shard: int) -> None:
        """Forgets the lines of a shard that is no longer ours."""
        self._fresh = deque(work for work in self._fresh if work.shard != shard)
        self._suspects = deque(work for work in self._suspects if work.shard != shard)
        self._later = [each for each in self._later if each[2].shard != shard]
        heapq.heapify(self._later)
