"""Which headers pass the gateway, in either direction, and which it sets itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

from skirret_api import internal
from skirret_gateway.request import Headers

# RFC 9110, section 7.6.1, and what either side frames anew.
_OF_ONE_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade http2-settings content-length".split()
)
_OURS = internal.PREFIX.encode()
_JSON_TYPE = re.compile(rb"[^/;]+/(?:[^/;]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)


def passing(headers: Headers, without: frozenset[bytes], *, ours: bool = False) -> Headers:
    """What goes through: not the connection's own, not `without`, `ours` only when said so."""
    named = _named_by_connection(headers)
    return [
        header
        for header in headers
        if (name := header[0]) not in _OF_ONE_CONNECTION
        and name not in without
        and (ours or not name.startswith(_OURS))
        and name not in named
    ]


def lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def is_json(content_type: bytes | None) -> bool:
    """Of a request; without a type it is taken for JSON."""
    return content_type is None or _JSON_TYPE.fullmatch(content_type.strip()) is not None


def is_event_stream(headers: Headers) -> bool:
    """Of an answer whose events can be read: not when they are compressed."""
    kinds = dict(headers)
    is_events = kinds.get(b"content-type", b"").lower().startswith(b"text/event-stream")
    return is_events and b"content-encoding" not in kinds


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    found: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            found |= {token.strip().lower() for token in value.split(b",")}
    return found
