"""A scope that ends early when the client goes away, the server drains or somebody aborts."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class ClientGone(Exception):
    """Nobody reads the answer any more; there is nothing to send."""


class Interruptible:
    """`interrupt(error)` makes the body of `async with` raise that error where it waits."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._error: Exception | None = None
        self._cancels_before = 0

    def interrupt(self, error: Exception) -> None:
        """The first error wins; after the scope has ended nothing happens."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancels_before = self._task.cancelling() if self._task else 0
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._error is None or task is None:
            return
        # A cancel from outside, beside ours, goes on.
        is_ours_alone = task.uncancel() <= self._cancels_before
        if is_ours_alone and isinstance(error, asyncio.CancelledError):
            raise self._error from None
