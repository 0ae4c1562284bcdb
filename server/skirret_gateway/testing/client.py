"""A client that shows what the wire carries: heads, chunks, and how a connection ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The envelope's content; raises KeyError when there is none."""
        error: dict[str, Any] = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        self._writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Sends a request and reads all of its answer."""
        await self.send(request(method, path, body, **headers))
        return await self.answer(is_head=method == "HEAD")

    async def answer(self, *, is_head: bool = False) -> Answer:
        head = await self.head()
        if is_head or head.status in (204, 304):
            return head
        if head.headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self.chunks()])
        elif "content-length" in head.headers:
            body = await self._reader.readexactly(int(head.headers["content-length"]))
        else:
            body = await self._reader.read()
        return Answer(head.status, head.headers, body)

    async def head(self) -> Answer:
        text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = text.strip().split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, f"{name} came twice"
            headers[name.lower()] = value.strip()
        return Answer(int(start.split(" ")[1]), headers)

    async def chunks(self) -> Any:
        while chunk := await self.chunk():
            yield chunk

    async def chunk(self) -> bytes:
        """The next one; the last is empty. Raises IncompleteReadError when there is none."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        data = await self._reader.readexactly(size + 2)
        return data[:-2]

    async def end(self) -> bytes:
        """What comes until the connection ends; resets are ends."""
        try:
            return await self._reader.read()
        except ConnectionError:
            return b""


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """`body` is sent as it is when it is bytes, else as JSON. Write `content_type` for headers."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        given = {"content-type": "application/json", "content-length": str(len(data)), **given}
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", *(f"{k}: {v}" for k, v in given.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data
