"""How soon a place comes free, measured by how fast requests have been ending."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

_WINDOW = 30.0  # seconds that are looked back
_LONGEST = 120  # a client does not retry at all when told to wait longer


class Departures:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: deque[float] = deque(maxlen=10_000)
        self._refused: deque[float] = deque(maxlen=10_000)

    def ended(self) -> None:
        """A request has ended, and its place is free."""
        self._ended.append(self._clock())

    def refused(self) -> int:
        """Seconds until places will have come free for all who were refused lately."""
        now = self._clock()
        self._refused.append(now)
        for times in (self._ended, self._refused):
            while times and times[0] < now - _WINDOW:
                times.popleft()
        if not self._ended:
            return min(math.ceil(_WINDOW), _LONGEST) if len(self._refused) > 1 else 1
        interval = max(now - self._ended[0], 1e-3) / len(self._ended)
        return max(1, min(math.ceil(interval * len(self._refused)), _LONGEST))
