"""Which line is asked next. Pure.

Suspects, the lines that were in flight when an engine died, go first and alone. The accused, that
were alone when it died again, wait until nothing else is left (`inquest`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from skirret_batch.worker.inquest import Work


class Pending:
    def __init__(self) -> None:
        self._fresh: deque[Work] = deque()
        self._suspects: deque[Work] = deque()
        self._later: list[tuple[float, int, Work]] = []
        self._accused: deque[Work] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Lines that are asked as soon as there is room: the accused wait for more than that."""
        return len(self._fresh) + len(self._suspects) + len(self._later)

    @property
    def accused(self) -> int:
        return len(self._accused)

    @property
    def suspected(self) -> int:
        """Lines that must be alone, the accused with them."""
        return len(self._suspects) + len(self._accused)

    def add(self, works: Iterable[Work]) -> None:
        self._fresh.extend(works)

    def put_back(self, work: Work) -> None:
        """It was not carried out; it is the next again."""
        if work.is_accused:
            self._accused.appendleft(work)
        else:
            (self._suspects if work.is_suspect else self._fresh).appendleft(work)

    def suspect(self, work: Work) -> None:
        (self._accused if work.is_accused else self._suspects).append(work)

    def retry(self, work: Work, at: float) -> None:
        self._count += 1  # breaks ties
        heapq.heappush(self._later, (at, self._count, work))

    def take(self, now: float, in_flight: int, *, alone: bool = True) -> Work | None:
        """The next line; None when none is due, or the next must wait to be alone.

        Without the right to ask lines `alone`, suspects stay.
        """
        while self._later and self._later[0][0] <= now:
            self.put_back(heapq.heappop(self._later)[2])
        if self._suspects and alone:
            return None if in_flight else self._suspects.popleft()
        return self._fresh.popleft() if self._fresh else None

    def take_accused(self) -> Work:
        """For when nothing else is left."""
        return self._accused.popleft()

    def wait(self, now: float) -> float:
        """How long until a line is due that isn't now."""
        return max(0.0, self._later[0][0] - now) if self._later else float("inf")

    def drop(self, shard: int) -> None:
        """Forgets the lines of a shard that is no longer ours."""
        self._fresh = deque(work for work in self._fresh if work.shard != shard)
        self._suspects = deque(work for work in self._suspects if work.shard != shard)
        self._accused = deque(work for work in self._accused if work.shard != shard)
        self._later = [each for each in self._later if each[2].shard != shard]
        heapq.heapify(self._later)
