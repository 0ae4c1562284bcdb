"""One request as the handlers see it: who asks, for what, with which body."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from skirret_api.errors import ApiError, InvalidRequest, TooLarge
from skirret_server.api.interrupts import ClientGone, Interruptible
from skirret_server.core import Lane

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_CALLERS_ID = re.compile(r"[\x21-\x7e]{1,128}")
_SIZE = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Caller:
    """What our own gateway or batch worker says of a request; a client can say none of it."""

    is_internal: bool = False
    lane: Lane = "interactive"
    served_name: str | None = None
    owner: str = ""
    priority: int = 0  # of the batch
    deadline: float | None = None
    blocks: tuple[str, ...] = ()  # hashes of the prompt's raw bytes, 512 at a time, each chained


@dataclass(slots=True)
class Request:
    id: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    started: float  # of the monotonic clock
    caller: Caller = field(default_factory=Caller)
    body: bytes = b""
    running: Interruptible = field(default_factory=Interruptible)
    facts: dict[str, object] = field(default_factory=dict)  # for the log: counts, never text

    def json(self) -> dict[str, Any]:
        """The body as an object. Raises InvalidRequest or a 415."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and not kind.endswith("/json"):
            raise UnsupportedMedia(kind)
        try:
            value = from_json(self.body, allow_inf_nan=False, cache_strings="keys")
        except ValueError as error:
            raise _unparsable(str(error)) from None
        if not isinstance(value, dict):
            raise _unparsable("it is not an object")
        return value


class UnsupportedMedia(ApiError):
    status = 415
    type = "invalid_request_error"

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"Unsupported content type '{kind[:100]}'. This API method only accepts "
            "'application/json' requests, but you specified the header "
            f"'Content-Type: {kind[:100]}'."
        )


def request_id(headers: MutableMapping[str, str]) -> str:
    """The caller's own, when it is one line of plain characters."""
    given = headers.get("x-request-id", "")
    return given if _CALLERS_ID.fullmatch(given) else f"req_{secrets.token_hex(16)}"


def read_headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(receive: Receive, headers: dict[str, str], limit: int) -> bytes:
    """Raises TooLarge when there is more than `limit`, ClientGone when it ends half-way."""
    declared = headers.get("content-length", "")
    size = int(declared) if _SIZE.fullmatch(declared) else 0
    pieces: list[bytes] = []
    read = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        read += len(piece)
        # A client still sending can't read our refusal, so one as large again is read and dropped.
        if read > 2 * limit or size > 2 * limit:
            raise _too_large(max(read, size), limit)
        if read <= limit:
            pieces.append(piece)
        if not message.get("more_body", False):
            break
    if read > limit:
        raise _too_large(read, limit)
    return b"".join(pieces)


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"The request body is too large: it has {size} bytes, and at most {limit} are allowed.",
        headers={"connection": "close"},
    )


def _unparsable(reason: str) -> InvalidRequest:
    return InvalidRequest(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't "
        "using your HTTP library correctly. The API expects a JSON payload, but what was sent "
        f"was not valid JSON: {reason}.)"
    )
