"""What a client asks: method, path, headers and a body that is read whole or piece by piece."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from os import urandom

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
        self._is_read_whole = False  # bounded by whoever reads it then, not by pausing
        self._error: Exception | None = None
        self._wake: asyncio.Future[None] | None = None

    async def read(self, limit: int) -> bytes:
        """All of it. Raises TooLarge, Unavailable when all bodies are too large, ClientGone."""
        self._is_read_whole = True
        self._pause(False)
        if self.length is not None and self.length > limit:
            raise _too_large(limit, f"{self.length}")
        while not self.is_complete:
            self._check(limit)
            await self._more()
        self._check(limit)
        pieces, self._pieces = self._pieces, []  # what they count for is given back by `drop`
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def piece(self) -> bytes:
        """The next bytes; none are left when it is empty. Raises ClientGone."""
        while not self._pieces and not self.is_complete:
            await self._more()
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
        if self._unread > PIECES_BYTES and not self._is_read_whole:
            self._pause(True)
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

    def _check(self, limit: int) -> None:
        if self._size > limit:
            raise _too_large(limit, f"at least {self._size}")
        if self._size > PIECES_BYTES and self._budget.used > self._budget.limit:
            raise Unavailable("The gateway holds too many large requests. Please try again.")

    async def _more(self) -> None:
        """Until something happened."""
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
        self.notes: dict[str, object] = {}  # for the access log
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
    return f"req_{urandom(16).hex()}"


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
