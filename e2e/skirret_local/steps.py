"""Says what goes on: what, how far, how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from skirret_local.errors import LocalError
from skirret_local.progress import say

EVERY = 5.0  # seconds between two lines of one step


class Step:
    """One piece of work under way, which tells how far it is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def tell(self, how_far: str) -> None:
        if time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            say(f"{self._what}: {how_far}, {self.seconds:.0f} s")

    def wait(self, ready: Callable[[], bool], awaited: str, within: float) -> None:
        """Returns when `ready`; raises LocalError after `within` seconds of this step."""
        while not ready():
            if self.seconds > within:
                raise LocalError(f"{self._what}: {awaited}: not within {within:.0f} s")
            self.tell(f"waiting for {awaited}")
            time.sleep(0.1)


@contextmanager
def step(what: str, hint: str = "") -> Iterator[Step]:
    say(f"{what} ({hint})" if hint else what)
    doing = Step(what)
    yield doing
    if doing.seconds >= 1:
        say(f"{what}: done in {doing.seconds:.1f} s")
