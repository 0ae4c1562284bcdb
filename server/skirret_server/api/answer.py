"""Writes the one answer to a request: JSON, or a stream of events that may yet fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self

from skirret_api.errors import ApiError
from skirret_server.api import wire
from skirret_server.api.exchange import Message, Request, Send
from skirret_server.api.interrupts import ClientGone


@dataclass(frozen=True, slots=True)
class Reply:
    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, headers: Mapping[str, str] | None = None, status: int = 200) -> Self:
        """A JSON answer."""
        return cls(wire.to_json(value), status, headers=headers or {})


@dataclass(frozen=True, slots=True)
class EventStream:
    """Bytes of events, made as they come. An error before the first is a plain answer."""

    events: AsyncGenerator[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds a stream may be silent, and its reader may stall."""

    heartbeat: float = 10.0
    stall: float = 30.0


class Answer:
    """Every way a request can be answered; knows whether the status is out already."""

    def __init__(
        self, send: Send, request: Request, pace: Pace, headers: Mapping[str, str]
    ) -> None:
        """`headers` go with whatever the answer turns out to be."""
        self.status: int | None = None  # once it is sent
        self._headers = headers
        self._send = send
        self._request = request
        self._pace = pace
        self._is_stream = False
        self._last_write = request.started
        self._is_writing = False

    async def reply(self, reply: Reply) -> None:
        headers = {
            "content-type": reply.content_type,
            "content-length": str(len(reply.body)),
            **reply.headers,
        }
        await self._start(reply.status, headers)
        await self._send({"type": "http.response.body", "body": reply.body})

    async def stream(self, stream: EventStream) -> None:
        """Opens at the first event, or with a comment when that is long in coming."""
        heart = asyncio.create_task(self._beat(stream.headers))
        try:
            async with aclosing(stream.events) as events:
                async for data in events:
                    await self._write(data, stream.headers)
        finally:
            heart.cancel()
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, error: ApiError) -> None:
        """The envelope, or the error event of a stream that has begun."""
        if self.status is None:
            await self.reply(Reply.of(error.body(), error.headers, error.status))
        elif self._is_stream:
            await self._write(wire.error_event(error) + wire.DONE, {})
            await self._send({"type": "http.response.body", "body": b""})

    async def pass_on(self, message: Message) -> None:
        """Sends a message of a mounted application, with our headers added to its own."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message["headers"], *_raw(self._own_headers())]}
        await self._send(message)

    async def _write(self, data: bytes, headers: Mapping[str, str]) -> None:
        self._is_writing = True
        self._last_write = time.monotonic()
        if self.status is None:
            await self._open(headers)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._is_writing = False

    async def _open(self, headers: Mapping[str, str]) -> None:
        self._is_stream = True
        await self._start(
            200,
            {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
                **headers,
            },
        )

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        raw = _raw({**headers, **self._own_headers()})
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _beat(self, headers: Mapping[str, str]) -> None:
        """Breaks a long silence with a comment, and ends a write that nobody reads."""
        while True:
            silence = time.monotonic() - self._last_write
            allowed = self._pace.stall if self._is_writing else self._pace.heartbeat
            if silence < allowed:
                await asyncio.sleep(min(allowed - silence, self._pace.stall))
            elif self._is_writing:
                self._request.running.interrupt(ReaderStalled())
                return
            else:
                await self._write(wire.KEEP_ALIVE, headers)

    def _own_headers(self) -> dict[str, str]:
        return {
            "x-request-id": self._request.id,
            "openai-processing-ms": str(round((time.monotonic() - self._request.started) * 1000)),
            "openai-version": "2020-10-01",
            **self._headers,
        }


class ReaderStalled(ClientGone):
    """The client has stopped reading; its stream is cut."""


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
