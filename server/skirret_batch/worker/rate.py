"""How fast a batch goes. Pure but for the clock handed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from skirret_batch.record import Progress

_WINDOW = 60.0  # seconds


class Rate:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int, int]] = deque()

    def progress(self, done: int, total: int, tokens: int) -> Progress:
        """Speed over the last minute, and how long the rest takes at that speed."""
        now = self._clock()
        self._seen.append((now, done, tokens))
        while self._seen[0][0] < now - _WINDOW and len(self._seen) > 2:
            self._seen.popleft()
        began, done_then, tokens_then = self._seen[0]
        seconds, lines = now - began, done - done_then
        if seconds <= 0 or lines <= 0:
            return Progress()
        return Progress(
            tokens_per_second=round((tokens - tokens_then) / seconds, 1),
            eta_seconds=round((total - done) * seconds / lines, 1),
        )
