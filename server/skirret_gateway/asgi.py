"""Runs an ASGI application on a request: for what isn't hot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from skirret_gateway.reply import Reply, date
from skirret_gateway.request import ClientGone, Request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


async def run(application: Application, request: Request, reply: Reply) -> None:
    """Returns when the application does; a client that goes is news to it, no end."""
    exchange = _Exchange(request, reply)
    request.on_gone = exchange.gone.set
    await application(_scope(request), exchange.receive, exchange.send)
    if exchange.gone.is_set():
        reply.abort()


class _Exchange:
    def __init__(self, request: Request, reply: Reply) -> None:
        self.gone = asyncio.Event()
        self._request = request
        self._reply = reply
        self._has_all = False
        self._start: tuple[int, list[tuple[bytes, bytes]]] | None = None

    async def receive(self) -> Message:
        if self._has_all:
            await self.gone.wait()
        with suppress(ClientGone):
            if not self._has_all:
                data = await self._request.body.piece()
                self._has_all = not data
                return {"type": "http.request", "body": data, "more_body": bool(data)}
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._start = (message["status"], list(message.get("headers", ())))
            return
        body, more = bytes(message.get("body", b"")), message.get("more_body", False)
        if self._start is not None:
            (status, headers), self._start = self._start, None
            self._reply.start(status, [date(), *_unframed(headers)], _length(headers, body, more))
        self._reply.write(body)
        if not more:
            self._reply.end()
        await self._reply.drain()


def _scope(request: Request) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(request.path),
        "raw_path": request.raw_path,
        "root_path": "",
        "query_string": request.query,
        "headers": request.headers,
        "client": None,
        "server": None,
    }


def _unframed(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    drop = (b"content-length", b"transfer-encoding", b"connection", b"x-request-id")
    return [(name, value) for name, value in headers if name.lower() not in drop]


def _length(headers: list[tuple[bytes, bytes]], body: bytes, more: bool) -> int | None:
    given = [value for name, value in headers if name.lower() == b"content-length"]
    if given:
        return int(given[0])
    return None if more else len(body)
