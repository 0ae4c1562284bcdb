"""What a client gets: one answer, framed for its version of HTTP, with its flow made visible."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

from skirret_api.errors import ApiError
from skirret_gateway.sse import EventStream

Header = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")


class Flow(Protocol):
    """Whoever writes more than the client reads is asked to wait."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Reply:
    """The answer to one request; it is started once, written to, ended once."""

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        request_id: str,
        may_go_on: Callable[[], bool] = lambda: True,
        is_head: bool = False,
        is_http11: bool = True,
        keep_alive: bool = True,
    ) -> None:
        self.status = 0  # of the answer once it is started
        self.is_ended = False
        self.keep_alive = keep_alive
        self.is_paused = False
        self.flow: Flow | None = None
        self.events: EventStream | None = None  # if the body is one
        self._transport = transport
        self._may_go_on = may_go_on  # whether the connection can take another request after this
        self._request_id = request_id.encode()
        self._is_head = is_head
        self._is_http11 = is_http11
        self._is_chunked = False
        self._resumed: asyncio.Future[None] | None = None

    @property
    def is_started(self) -> bool:
        return self.status != 0

    def start(
        self, status: int, headers: Iterable[Header], length: int | None, *, events: bool = False
    ) -> None:
        """Sends the head. `headers` say nothing of framing; None: the length isn't known.

        A body of events is passed on in whole ones, and ends with one that says so if it fails.
        """
        self.events = EventStream() if events and length is None else None
        self._put(self._head(status, headers, length))

    def write(self, data: bytes) -> None:
        if self.events is not None:
            data = self.events.feed(data)
        self._write(data)

    def end(self) -> None:
        if self.events is not None:
            self._write(self.events.rest())
        self.is_ended = True
        if self._is_chunked and not self._is_head:
            self._put(b"0\r\n\r\n")

    def send(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """A whole answer at once."""
        head = self._head(status, headers, len(body))
        self._put(head if self._is_head else head + body)
        self.is_ended = True

    def json(self, body: Any, status: int = 200, headers: Iterable[Header] = ()) -> None:
        self.send(status, [JSON, date(), *headers], json.dumps(body).encode())

    def error(self, error: ApiError) -> None:
        """The envelope; to a stream an event. What can't be told so ends the connection."""
        if not self.is_started:
            headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
            self.json(error.body(), error.status, headers)
        elif self.events is None or self.events.is_torn:
            self.abort()
        else:
            self._write(self.events.close(error))
            self.end()

    def abort(self) -> None:
        """Ends the connection in the middle, so that the client can't take this for an end."""
        self.is_ended = True
        self.keep_alive = False
        self._transport.abort()

    async def drain(self) -> None:
        """Waits until the client has read enough of what was written."""
        if self.is_paused:
            self._resumed = self._resumed or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._resumed)

    def pause(self) -> None:
        self.is_paused = True
        if self.flow is not None:
            self.flow.pause()

    def resume(self) -> None:
        self.is_paused = False
        if self.flow is not None:
            self.flow.resume()
        if self._resumed is not None:
            self._resumed.set_result(None)
            self._resumed = None

    def _write(self, data: bytes) -> None:
        if data and not self._is_head:
            self._put(_chunk(data) if self._is_chunked else data)

    def _put(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _head(self, status: int, headers: Iterable[Header], length: int | None) -> bytes:
        self.status = status
        lines = [_status_line(status)]
        lines += [b"%b: %b\r\n" % header for header in headers]
        lines.append(b"x-request-id: %b\r\n" % self._request_id)
        if status in _BODYLESS:
            pass
        elif length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        elif self._is_http11:
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self.keep_alive = False
        if not self.keep_alive or not self._may_go_on():
            lines.append(b"connection: close\r\n")
        elif not self._is_http11:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


_BODYLESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


def date() -> Header:
    """For answers of our own; a server's are passed on with its date."""
    return b"date", formatdate(usegmt=True).encode()


@lru_cache(maxsize=1024)
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
