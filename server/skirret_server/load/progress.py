"""How far loading is: written by the thread that loads, read by whoever asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """What /status says. Of a phase that moves no bytes only the name is known."""

    phase: str
    percent: float | None = None
    bytes_per_second: float | None = None
    eta_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Phase:
    name: str
    total: int  # bytes
    found: int  # bytes that an earlier run had brought
    started: float


class Progress:
    """One writer, any number of readers: each field is replaced whole."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._phase = _Phase("starting", 0, 0, clock())
        self._done = 0

    def begin(self, phase: str, total: int = 0, found: int = 0) -> None:
        """A new phase of `total` bytes, of which `found` were there already."""
        self._done = found
        self._phase = _Phase(phase, total, found, self._clock())

    def moved(self, count: int) -> None:
        """`count` more bytes are through; less than zero when some must come again."""
        self._done += count

    def status(self) -> LoadStatus:
        phase, done = self._phase, self._done
        if not phase.total:
            return LoadStatus(phase.name)
        rate = max(done - phase.found, 0) / max(self._clock() - phase.started, 1e-3)
        return LoadStatus(
            phase=phase.name,
            percent=min(100.0, 100.0 * done / phase.total),
            bytes_per_second=rate,
            eta_seconds=max(phase.total - done, 0) / rate if rate else None,
        )
