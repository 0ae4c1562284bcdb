"""An HTTP server that does with each request what a test says, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from skirret_api import internal


@dataclass(eq=False)
class Seen:
    """A request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]  # names in lower case
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # its client closed the connection

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Connection:
    """Where a behaviour writes its answer."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        self._writer.transport.abort()


Behaviour = Callable[[Seen, Connection], Awaitable[None]]

COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}


class ScriptedServer:
    """Answers with the behaviours of its script in turn, then with `default`."""

    def __init__(self, default: Behaviour | None = None, port: int = 0) -> None:
        self.default = default or answer(COMPLETION)
        self.script: deque[Behaviour] = deque()
        self.seen: list[Seen] = []
        self.connections = 0
        self._port = port
        self._arrived = asyncio.Condition()
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """As when its process is killed: every connection is reset, new ones are refused."""
        self._server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def arrived(self, count: int) -> Seen:
        """The request with this number, from 1, as soon as it has come."""
        async with self._arrived, asyncio.timeout(5):
            await self._arrived.wait_for(lambda: len(self.seen) >= count)
        return self.seen[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while (seen := await _read(reader)) is not None and not writer.is_closing():
                await self._behave(seen, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _behave(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.seen.append(seen)
        async with self._arrived:
            self._arrived.notify_all()
        behaviour = self.script.popleft() if self.script else self.default
        work = asyncio.ensure_future(behaviour(seen, Connection(writer)))
        watch = asyncio.ensure_future(_until_gone(reader))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                seen.gone.set()
                work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        except ConnectionError:
            seen.gone.set()
            raise
        finally:
            work.cancel()
            watch.cancel()


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    start, *lines = head.strip().split("\r\n")
    method, target, _ = start.split(" ")
    headers = [
        (name.lower(), value.strip()) for name, _, value in (x.partition(":") for x in lines)
    ]
    length = int(dict(headers).get("content-length", "0"))
    return Seen(method, target, headers, await reader.readexactly(length))


async def _until_gone(reader: asyncio.StreamReader) -> None:
    """Looks without reading: the gateway sends nothing before it has its answer."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.005)


def head(status: int, *headers: tuple[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answer(body: Any, status: int = 200, *headers: tuple[str, str]) -> Behaviour:
    """A whole JSON answer."""
    data = json.dumps(body).encode()
    length = ("content-length", str(len(data)))

    async def behave(seen: Seen, to: Connection) -> None:
        kind = ("content-type", "application/json")
        await to.send(head(status, kind, length, *headers) + data)

    return behave


def draining() -> Behaviour:
    body = {"error": {"message": "draining", "type": "server_error", "param": None, "code": None}}
    return answer(body, 503, (internal.DRAINING, "1"), ("retry-after", "1"))


EVENTS = ("content-type", "text/event-stream; charset=utf-8")
CHUNKED = ("transfer-encoding", "chunked")


def event(text: str) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }
    return b"data: %b\n\n" % json.dumps(chunk).encode()


DONE = b"data: [DONE]\n\n"


def stream(*pieces: bytes, pause: float = 0, end: bytes = b"0\r\n\r\n") -> Behaviour:
    """A chunked event stream, one chunk a piece. Without `end` the connection is reset instead."""

    async def behave(seen: Seen, to: Connection) -> None:
        await to.send(head(200, EVENTS, CHUNKED))
        for piece in pieces:
            await to.chunk(piece)
            await asyncio.sleep(pause)
        if end:
            await to.send(end)
        else:
            await asyncio.sleep(0.02)  # what was sent arrives before the reset
            to.reset()

    return behave


def raw(data: bytes, *, close: bool = False) -> Behaviour:
    """Just these bytes."""

    async def behave(seen: Seen, to: Connection) -> None:
        await to.send(data)
        if close:
            to.close()

    return behave


async def cut(seen: Seen, to: Connection) -> None:
    """Ends the connection before any byte."""
    to.close()


async def silence(seen: Seen, to: Connection) -> None:
    """Never answers."""
    await seen.gone.wait()


def slow(seconds: float, then: Behaviour) -> Behaviour:
    async def behave(seen: Seen, to: Connection) -> None:
        await asyncio.sleep(seconds)
        await then(seen, to)

    return behave


def gated(gate: asyncio.Event, then: Behaviour) -> Behaviour:
    """Waits until the test opens the gate."""

    async def behave(seen: Seen, to: Connection) -> None:
        await gate.wait()
        await then(seen, to)

    return behave
