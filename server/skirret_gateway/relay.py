"""One answer on its way from a server to a client, byte for byte, at the pace of the slower one."""

from __future__ import annotations

import asyncio

from skirret_gateway.reply import Reply
from skirret_gateway.upstream import Ended, Head, Upstream

_EARLY_BYTES = 1 << 20


class Relay:
    """A Sink of an upstream connection. First `answered`, then `pass_on` or `collect`."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._is_open = True  # the server may still send
        loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[Head] = loop.create_future()
        self._finished: asyncio.Future[None] = loop.create_future()
        self._early: list[bytes] = []  # bytes that came before there was anywhere to put them
        self._early_bytes = 0
        self._reply: Reply | None = None
        self._until_close = False

    async def answered(self) -> Head:
        """The head of the answer. Raises Ended when there is none."""
        return await self._answered

    async def pass_on(self, reply: Reply) -> None:
        """All of the body, to a reply that is started. Raises Ended when the server broke off."""
        self._reply = reply
        early, self._early = self._early, []
        for data in early:
            reply.write(data)
        reply.flow = self
        if reply.is_paused:
            self.pause()
        try:
            await self._finished
        finally:
            reply.flow = None
        if self._until_close and reply.events is not None and not reply.events.is_done:
            raise Ended("it closed the connection")

    async def collect(self) -> bytes:
        """All of a short body. Raises Ended when it is long, or the server broke off."""
        await self._finished
        return b"".join(self._early)

    def cancel(self) -> None:
        """The server needn't go on. Harmless after the end."""
        if self._is_open:
            self._is_open = False
            self._upstream.abort()

    # Sink

    def head(self, head: Head) -> None:
        self._until_close = head.until_close
        if not self._answered.done():
            self._answered.set_result(head)

    def body(self, data: bytes) -> None:
        if self._reply is None:
            self._early.append(data)
            self._early_bytes += len(data)
            if self._early_bytes > _EARLY_BYTES:
                self._upstream.fail(Ended("its answer is too long"))
        else:
            self._reply.write(data)

    def end(self) -> None:
        self._is_open = False
        if not self._finished.done():
            self._finished.set_result(None)

    def failed(self, error: Ended) -> None:
        self._is_open = False
        future = self._finished if self._answered.done() else self._answered
        if not future.done():
            future.set_exception(error)
            future.exception()  # seen: nobody may be left to wait for it

    # Flow

    def pause(self) -> None:
        if self._is_open:  # else the connection may be another's already
            self._upstream.pause()

    def resume(self) -> None:
        if self._is_open:
            self._upstream.resume()
