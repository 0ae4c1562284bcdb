"""Where one sequence's updates wait for their reader."""

from __future__ import annotations

import asyncio

from skirret_server.core import EngineError, Update


class Stream:
    """One update at most: what comes before it is taken is merged into it.

    So a slow reader costs no more memory than the tokens it asked for. Used on one event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ended = False
        self._update: Update | None = None
        self._error: EngineError | None = None
        self._arrived: asyncio.Future[None] | None = None  # while the reader waits

    def put(self, update: Update) -> None:
        self._update = update if self._update is None else merged(self._update, update)
        self.ended = update.finish is not None
        self._wake()

    def fail(self, error: EngineError) -> None:
        self._error, self.ended = error, True
        self._wake()

    async def take(self) -> Update:
        """Raises the sequence's error once the updates before it are taken."""
        if self._update is None and self._error is None:
            self._arrived = self.loop.create_future()
            await self._arrived
        update, self._update = self._update, None
        if update is None:
            assert self._error is not None, "something has arrived"
            raise self._error
        return update

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)


def merged(earlier: Update, later: Update) -> Update:
    return Update(
        tokens=earlier.tokens + later.tokens,
        logprobs=earlier.logprobs + later.logprobs,
        cached_tokens=earlier.cached_tokens,
        prompt_logprobs=earlier.prompt_logprobs,
        finish=later.finish,
    )
