"""Connections to servers: kept alive, pooled without a limit, one answer at a time on each."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol, cast

import httptools

from skirret_gateway.table import Replica

Headers = list[tuple[bytes, bytes]]  # names in lower case


class ConnectFailed(Exception):
    """No connection to a server; the message says to which and why."""


class Ended(Exception):
    """A server's connection ended before its answer did."""


class Silent(Ended):
    """A server sent nothing for so long that its connection was ended; it may still be at work."""


class Head(NamedTuple):
    status: int
    headers: Headers
    length: int | None  # of the body, when the server said so
    until_close: bool  # the body ends with the connection, so its end can't be told from a cut


class Sink(Protocol):
    """Who takes an answer. Calls come in this order: head, body…, then end or failed."""

    def head(self, head: Head) -> None: ...

    def body(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def failed(self, error: Ended) -> None: ...


class Upstream(asyncio.Protocol):
    """One connection to one server."""

    def __init__(self, replica: Replica, on_done: Callable[[Upstream, bool], None]) -> None:
        self.replica = replica
        self.was_used = False
        self.active_at = 0.0  # when a byte last came or went, by the event loop's clock
        self.is_paused = False
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._sink: Sink | None = None
        self._has_head = False

    # What the gateway does with it.

    def send(self, sink: Sink, head: bytes, body: bytes) -> None:
        """Sends a request; its answer goes to `sink`."""
        if not self.is_open:  # it was closed as soon as it was made
            self._on_done(self, False)
            sink.failed(Ended("it closed the connection"))
            return
        self._sink = sink
        self._has_head = False
        self._parser = httptools.HttpResponseParser(self)
        self.active_at = self._loop.time()
        self._transport.writelines((head, body) if body else (head,))

    def pause(self) -> None:
        self.is_paused = True
        if self.is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        self.is_paused = False
        self.active_at = self._loop.time()
        if self.is_open:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Ends the connection at once, so that the server stops its work. The sink isn't told."""
        self._release()
        self._transport.abort()

    def fail(self, error: Ended) -> None:
        """Ends the connection at once, and tells the sink."""
        sink = self._release()
        self._transport.abort()
        if sink is not None:
            sink.failed(error)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def _release(self, keep: bool = False) -> Sink | None:
        """The exchange is over; `keep` when another may follow."""
        sink, self._sink = self._sink, None
        if sink is not None:
            self._on_done(self, keep)
        return sink

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _notice_dead_peers(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self.active_at = self._loop.time()
        if self._sink is None:  # nobody asked for this
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(Ended(f"its answer is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        sink = self._release()
        if sink is None:
            return
        if exc is None and self._has_head and self._until_close:
            sink.end()
        else:
            sink.failed(Ended(str(exc or "it closed the connection")))

    # httptools

    def on_message_begin(self) -> None:
        self._headers: Headers = []
        self._length: int | None = None
        self._until_close = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer; they end here
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
            self._until_close = False
        elif name == b"transfer-encoding" and b"chunked" in value.lower():
            self._until_close = False
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._sink is None:
            return
        self._has_head = True
        if status in (204, 304):
            self._until_close = False
        self._sink.head(Head(status, self._headers, self._length, self._until_close))

    def on_body(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.body(data)

    def on_message_complete(self) -> None:
        if self._sink is None or not self._has_head:
            return
        # A server may answer before it has read all of the request.
        keep = self._parser.should_keep_alive() and not self._transport.get_write_buffer_size()
        if self.is_paused:
            self.resume()
        self.was_used = True
        if not keep:
            self._transport.close()
        sink = self._release(keep)
        assert sink is not None
        sink.end()


@dataclass(frozen=True, slots=True)
class PoolSettings:
    connect_timeout: float = 3.0  # seconds
    idle_timeout: float = 600.0  # of a server that sends nothing
    keepalive: float = 4.0  # of an unused connection; servers keep theirs for 5 seconds or longer


class Pool:
    """Connections by server; one that was unused for too long is not used again."""

    def __init__(self, settings: PoolSettings) -> None:
        self._connect_timeout = settings.connect_timeout
        self._keepalive = settings.keepalive
        self._idle_timeout = settings.idle_timeout
        self._idle: defaultdict[Replica, list[Upstream]] = defaultdict(list)
        self._busy: set[Upstream] = set()
        self._loop = asyncio.get_running_loop()

    async def connect(self, replica: Replica) -> Upstream:
        """An idle connection, or a new one. Raises ConnectFailed."""
        upstream = self._reuse(replica) or await self._open(replica)
        self._busy.add(upstream)
        return upstream

    def sweep(self) -> None:
        """Ends what has been silent for too long; to be called every second or so."""
        now = self._loop.time()
        for upstream in list(self._busy):
            if not upstream.is_paused and now - upstream.active_at > self._idle_timeout:
                upstream.fail(Silent(f"it sent nothing for {self._idle_timeout:g} s"))
        for replica, idle in list(self._idle.items()):
            fresh = [up for up in idle if up.is_open and now - up.active_at <= self._keepalive]
            for upstream in set(idle).difference(fresh):
                upstream.abort()
            if fresh:
                self._idle[replica] = fresh
            else:
                del self._idle[replica]

    def close(self) -> None:
        for upstream in [*self._busy, *(up for idle in self._idle.values() for up in idle)]:
            upstream.abort()

    def _reuse(self, replica: Replica) -> Upstream | None:
        idle = self._idle.get(replica)
        while idle:
            upstream = idle.pop()
            if upstream.is_open and self._loop.time() - upstream.active_at <= self._keepalive:
                return upstream
            upstream.abort()
        return None

    async def _open(self, replica: Replica) -> Upstream:
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, upstream = await self._loop.create_connection(
                    lambda: Upstream(replica, self._done),
                    replica.host,
                    replica.port,
                    ssl=_tls() if replica.tls else None,
                )
        except TimeoutError as error:
            raise ConnectFailed(f"{replica}: no answer in {self._connect_timeout:g} s") from error
        except OSError as error:
            raise ConnectFailed(f"{replica}: {error}") from error
        return upstream

    def _done(self, upstream: Upstream, keep: bool) -> None:
        self._busy.discard(upstream)
        if keep:
            self._idle[upstream.replica].append(upstream)


@cache  # reads all the system's certificates, and hardly anybody needs it
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _notice_dead_peers(sock: socket.socket) -> None:
    """A machine that is gone sends no goodbye: ask after 15 silent seconds, give up after 30."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBING.items():
        if hasattr(socket, name):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_PROBING = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
