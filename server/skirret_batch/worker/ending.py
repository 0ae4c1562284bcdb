"""Why a worker stops asking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

Reason = Literal["cancelled", "expired", "taken", "over", "stopped"]


_OVERRULES: frozenset[Reason] = frozenset({"over", "stopped"})


class Ending:
    """The first reason counts, until one that leaves nothing to do.

    cancelled, expired: the lines left get their codes. taken: another worker publishes.

    over: the batch has ended without us. stopped: this process must go; another goes on.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._event = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return self.reason is not None

    @property
    def is_ours(self) -> bool:
        """True while there is, or may be, something to publish for this process."""
        return self.reason not in _OVERRULES

    def set(self, reason: Reason) -> None:
        if self.reason is None or (reason in _OVERRULES and self.reason != "stopped"):
            self.reason = reason
        self._event.set()
        for listener in self._listeners:
            listener()

    def tell(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def wait(self, timeout: float) -> bool:
        """True as soon as there is a reason; False after so many seconds without."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
