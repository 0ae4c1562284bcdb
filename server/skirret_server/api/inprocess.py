"""Requests to an ASGI application from the same process, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from skirret_server.api.app import AsgiApp
from skirret_server.api.exchange import Message


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Call:
    """One request under way. Leaving it early is a client that hangs up."""

    def __init__(
        self,
        app: AsgiApp,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in (headers or {}).items()
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }
        self._app = app
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Returns when the status is known."""
        self._task = asyncio.create_task(self._run())
        start = await self._sent.get()
        if start is None:
            await self._task
            raise ConnectionError("the application ended without an answer")
        self.status = start["status"]
        self.headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]
        }
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.hang_up()
        if self._task is not None:
            await self._task

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it was sent."""
        while (message := await self._sent.get()) is not None:
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    def hang_up(self) -> None:
        self._gone.set()

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._sent.put_nowait(message)


async def ask(
    app: AsgiApp,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A request and its whole answer. Raises ConnectionError when there is none."""
    async with Call(app, method, path, body, headers) as call:
        pieces = [piece async for piece in call.pieces()]
    return Response(call.status, call.headers, b"".join(pieces))
