"""The client's side: parses requests, has them answered one at a time, keeps every bound.

What a client can pile up is limited: its head in bytes and seconds, its body by whoever reads it,
bytes that nobody reads by pausing it, silence by deadlines, connections by number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import cast

import httptools

from skirret_api.errors import ApiError, InvalidRequest, ServerFault, Unavailable
from skirret_gateway.reply import Reply
from skirret_gateway.request import Body, Budget, ClientGone, Headers, Request, new_id

Handler = Callable[[Request, Reply], Awaitable[None]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Of one client, but for the last two."""

    head_bytes: int = 64 << 10
    unsent_bytes: int = 64 << 10  # at which whoever writes is asked to wait
    head_seconds: float = 20.0
    body_seconds: float = 60.0  # between two pieces of a body
    idle_seconds: float = 75.0  # between two requests
    stalled_seconds: float = 120.0  # without reading anything of its answer
    linger_seconds: float = 5.0  # to read a refusal while it still sends
    bodies_bytes: int = 512 << 20
    connections: int = 10_000


class Door:
    """All the connections of clients."""

    def __init__(
        self,
        handler: Handler,
        limits: DoorLimits = DoorLimits(),
        on_answered: Callable[[Request, Reply, float], None] = lambda *_: None,
    ) -> None:
        """`on_answered` is told of each request that ended, and how many seconds it took."""
        self.handler = handler
        self.on_answered = on_answered
        self.limits = limits
        self.budget = Budget(limits.bodies_bytes)
        self.connections: set[Connection] = set()
        self.is_closing = False

    def connection(self) -> Connection:
        """For `loop.create_server`."""
        return Connection(self)

    def sweep(self, now: float) -> None:
        """Ends what is past its deadline; to be called every second or so."""
        for connection in [c for c in self.connections if now > c.expires_at]:
            connection.expire()

    async def close(self, patience: float) -> None:
        """Lets answers end for so long, then ends them. New connections must be stopped before."""
        self.is_closing = True
        for connection in list(self.connections):
            connection.close_when_idle()
        tasks = {c.task for c in self.connections if c.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1)
        for connection in list(self.connections):
            connection.hang_up()


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, door: Door) -> None:
        self.task: asyncio.Task[None] | None = None  # of the request that is being answered
        self.expires_at = inf
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, Reply]] = deque()  # sent before the answer to the first
        self._answering: tuple[Request, Reply] | None = None
        self._arriving: Body | None = None  # of the request that is being received
        self._head_bytes = 0
        self._in_head = True
        self._is_flood = False  # a head too large, even if it came in one piece
        self._is_deaf = False  # what still comes is thrown away
        self._is_resuming = False
        self._is_chunked = False
        self._is_stale = False  # the parser may hold back a trailer

    # What the door does with it.

    def expire(self) -> None:
        if self._answering is not None and self._arriving is not None:
            self._arriving.fail(InvalidRequest("The request's body took too long to arrive."))
            self.expires_at = inf
        else:
            self._transport.abort()

    def close_when_idle(self) -> None:
        if self._answering is None:
            self._transport.close()
        else:
            self._answering[1].keep_alive = False

    def hang_up(self) -> None:
        self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._door.limits.unsent_bytes)
        self._expire_in(self._door.limits.idle_seconds)
        if len(self._door.connections) >= self._door.limits.connections:
            self._transport.abort()
        else:
            self._door.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._in_head:
            self._head_bytes += len(data)
        elif self._arriving is not None:
            self._expire_in(self._door.limits.body_seconds)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if not self._is_flood:
                self._refuse(InvalidRequest("This is no HTTP/1.1 request."))
        if self._is_flood or (self._in_head and self._head_bytes > self._door.limits.head_bytes):
            self._refuse(InvalidRequest("The request's headers are too large.", status=431))

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.connections.discard(self)
        if self._arriving is not None:
            self._arriving.fail(ClientGone())
        for request, _ in self._waiting:
            request.body.drop()
        if self._answering is not None:
            request, reply = self._answering
            request.is_gone = True
            reply.resume()
            request.on_gone()

    def pause_writing(self) -> None:
        if self._answering is not None:
            self._expire_in(self._door.limits.stalled_seconds)
            self._answering[1].pause()

    def resume_writing(self) -> None:
        if self._answering is not None:
            self.expires_at = inf
            self._answering[1].resume()

    # httptools

    def on_message_begin(self) -> None:
        if self._is_resuming:
            return
        if self._is_stale:  # its trailer would be a header of this request
            raise ValueError("nothing may follow a chunked request in the same piece")
        self._target = b""
        self._headers: Headers = []
        self._headers_bytes = 0
        self._is_chunked = self._expects_continue = False
        self._length: int | None = None
        if self._answering is None:
            self._expire_in(self._door.limits.head_seconds)

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer, or what begins a resumed body
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > self._door.limits.head_bytes:
            self._is_flood = True
            raise ValueError("the head is too large")  # ends the parser
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            self._is_chunked = True
        elif name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._is_resuming:
            return
        self._in_head = False
        self._head_bytes = 0
        parser = self._parser
        is_http11 = parser.get_http_version() == "1.1"
        method = parser.get_method().decode()
        body = self._arriving = Body(self._door.budget, self._hold_back)
        body.length = self._length
        if self._expects_continue and is_http11:
            body.on_wanted = self._say_continue
        request = Request(method, self._target, self._headers, body)
        reply = Reply(
            self._transport,
            request_id=request.id,
            may_go_on=lambda: body.is_complete,
            is_head=method == "HEAD",
            is_http11=is_http11,
            keep_alive=parser.should_keep_alive() and not self._door.is_closing,
        )
        self._expire_in(self._door.limits.body_seconds)
        if self._answering is None:
            self._answer(request, reply)
        else:
            self._waiting.append((request, reply))
            self._hold_back(True)

    def on_body(self, data: bytes) -> None:
        if self._arriving is not None:
            self._arriving.feed(data)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade() or self._arriving is None:
            return  # see _resume
        self._arriving.end()
        self._arriving = None
        self._in_head = True
        self._is_stale = self._is_chunked
        self.expires_at = inf

    # Receiving

    def _feed(self, data: bytes) -> None:
        if self._is_stale:
            self._parser = httptools.HttpRequestParser(self)
            self._is_stale = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._resume(data[upgrade.args[0] :])

    def _resume(self, rest: bytes) -> None:
        """Goes on as if no other protocol had been proposed, as some clients do with each request.

        The parser takes what follows such a head for the other protocol, so a new one is told how
        the body is framed.
        """
        self._parser = httptools.HttpRequestParser(self)
        framing = [h for h in self._headers if h[0] in (b"content-length", b"transfer-encoding")]
        head = [b"POST / HTTP/1.1", *(b"%b: %b" % header for header in framing), b"", b""]
        self._is_resuming = True
        self._parser.feed_data(b"\r\n".join(head))
        self._is_resuming = False
        if rest:
            self._parser.feed_data(rest)

    def _hold_back(self, pause: bool) -> None:
        """Reads no more from this client, or goes on. Harmless when it is so already."""
        if self._transport.is_closing():
            return
        if pause:
            self._transport.pause_reading()
        elif not self._waiting:
            self._transport.resume_reading()

    def _say_continue(self) -> None:
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, error: ApiError) -> None:
        """This can't be read on: whoever reads the body is told, else the client."""
        self._is_deaf = True
        if self._arriving is not None:
            self._arriving.fail(error)
        elif self._answering is not None:
            self._answering[1].keep_alive = False
        else:
            Reply(self._transport, request_id=new_id(), keep_alive=False).error(error)
            self._linger()

    # Answering

    def _answer(self, request: Request, reply: Reply) -> None:
        self._answering = (request, reply)
        began = self._loop.time()
        self.task = self._loop.create_task(self._handle(request, reply))
        self.task.add_done_callback(lambda task: self._answered(request, reply, began))
        request.on_gone = self.task.cancel

    async def _handle(self, request: Request, reply: Reply) -> None:
        try:
            await self._door.handler(request, reply)
            if not reply.is_ended:
                raise RuntimeError(f"{request.method} {request.path} was left without an answer")
        except ApiError as error:
            request.notes["error"] = error.code or error.type
            reply.error(error)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if not request.is_gone and not reply.is_ended:
                reply.error(Unavailable("The gateway is shutting down."))
            raise
        except Exception:
            log.exception("request %s failed", request.id)
            reply.error(ServerFault(request.id))

    def _answered(self, request: Request, reply: Reply, began: float) -> None:
        self._door.on_answered(request, reply, self._loop.time() - began)
        request.body.drop()
        self._answering = self.task = None
        if self._transport.is_closing():
            return
        if not request.body.is_complete:
            self._linger()
        elif not reply.keep_alive or self._is_deaf or self._door.is_closing:
            self._expire_in(self._door.limits.stalled_seconds)
            self._transport.close()
        elif self._waiting:
            self._answer(*self._waiting.popleft())
            self._hold_back(False)
        else:
            self._expire_in(self._door.limits.idle_seconds)

    def _linger(self) -> None:
        """Lets a client that still sends read its refusal; a plain close would reset it away."""
        self._is_deaf = True
        self._expire_in(self._door.limits.linger_seconds)
        with suppress(NotImplementedError):  # TLS has no half-close
            self._transport.write_eof()
        self._transport.resume_reading()

    def _expire_in(self, seconds: float) -> None:
        self.expires_at = self._loop.time() + seconds
