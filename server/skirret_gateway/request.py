"""What a client asks: method, path, headers and a body that is read whole or piece by piece."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

import httptools

from skirret_api.errors import ApiError, TooLarge, Unavailable

Headers = list[tuple[bytes, bytes]]  # names in lower case

PIECES_BYTES = 64 << 10  # unread bytes of a body at which its client is paused
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class ClientGone(Exception):
    """The connection ended before the body did."""


@dataclass(slots=True)
class Budget:
    """Bytes of all the bodies in the process."""

    limit: int
    used: int = 0


class Body:
    """Bytes from the client. Whoever waits is woken by `feed`, `end` and `fail`."""

    def __init__(self, budget: Budget, pause: Callable[[bool], None]) -> None:
        self.is_complete = False
        self.length: int | None = None  # as announced
        self.on_wanted: Callable[[], None] | None = None  # asks the client to go on, once
        self._budget = budget
        self._pause = pause
        self._pieces: list[bytes] = []
        self._unread = 0
        self._size = 0
        self._limit: int | None = None  # of a body that is read whole
        self._error: Exception | None = None
        self._wake: asyncio.Future[None] | None = None

    async def read(self, limit: int) -> bytes:
        """All of it. Raises TooLarge, Unavailable when all bodies are too large, ClientGone."""
        self._limit = limit
        self._pause(False)
        if self.length is not None and self.length > limit:
            raise _too_large(limit, f"{self.length}")
        await self._until(lambda: self.is_complete)
        if self._size > limit:
            raise _too_large(limit, f"{self._size}")
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    async def piece(self) -> bytes:
        """The next bytes; none are left when it is empty. Raises ClientGone."""
        await self._until(lambda: bool(self._pieces) or self.is_complete)
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._drop()
        self._pause(False)
        return data

    def feed(self, data: bytes) -> None:
        if self._error is not None:
            return
        self._pieces.append(data)
        self._size += len(data)
        self._unread += len(data)
        self._budget.used += len(data)
        if self._limit is None:
            if self._unread > PIECES_BYTES:
                self._pause(True)
        elif self._size > self._limit:
            self.fail(_too_large(self._limit, f"more than {self._limit}"))
        elif self._budget.used > self._budget.limit:
            self.fail(Unavailable("The gateway holds too many large requests. Please try again."))
        self._awake()

    def end(self) -> None:
        self.is_complete = True
        self._awake()

    def fail(self, error: Exception) -> None:
        """What is read from now on raises this."""
        self._error = self._error or error
        self._awake()

    def drop(self) -> None:
        """Nobody reads it any more."""
        self._pieces = []
        self._drop()

    def _drop(self) -> None:
        self._budget.used -= self._unread
        self._unread = 0

    async def _until(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            if self._error is not None:
                raise self._error
            if self.on_wanted is not None:
                on_wanted, self.on_wanted = self.on_wanted, None
                on_wanted()
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _awake(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)


class Request:
    """One request, complete but for its body."""

    def __init__(self, method: str, target: bytes, headers: Headers, body: Body) -> None:
        self.method = method
        self.headers = headers
        self.body = body
        self.raw_path, self.query = _split(target)
        self.path = self.raw_path.decode("latin-1")
        self.on_gone: Callable[[], object] = lambda: None  # called when the client went away
        self.is_gone = False
        given = self.header(b"x-request-id")
        valid = given is not None and _REQUEST_ID.fullmatch(given)
        self.id = given.decode() if given and valid else new_id()

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


def new_id() -> str:
    return f"req_{token_hex(16)}"


def _split(target: bytes) -> tuple[bytes, bytes]:
    if not target.startswith(b"/"):  # as proxies are asked: http://host/path
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            return target, b""
        return url.path or b"/", url.query or b""
    path, _, query = target.partition(b"?")
    return path, query


def _too_large(limit: int, size: str) -> ApiError:
    return TooLarge(f"Request body too large: {size} bytes. The limit is {limit} bytes.")
