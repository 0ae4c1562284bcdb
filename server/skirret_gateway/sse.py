"""Event streams as they pass: whole events only, so that each can end with an error at any time."""

from __future__ import annotations

import json
import re
from typing import Any

from skirret_api import internal
from skirret_api.errors import ApiError
from skirret_gateway.usage import Tokens, parse

COMMENT = b": waiting for a server\n\n"
DONE = b"data: [DONE]\n\n"

_HELD_BYTES = 64 << 10  # of an event that isn't whole; a longer one is passed on in pieces
_TAIL_BYTES = 128
_USAGE = re.compile(rb"^: %b ([\d,]+)\r?$" % internal.USAGE.encode(), re.MULTILINE)
_IS_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\][\r\n]*\Z")


class EventStream:
    """A stream on its way to the client. Its bytes are never changed, only held back a little."""

    def __init__(self) -> None:
        self.is_done = False  # its last event so far is [DONE]
        self.is_torn = False  # the client has a part of an event
        self.count = 0  # of events with data
        self._last = self._before = b""  # what was sent
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be sent on now: up to the end of the last whole event."""
        if self._held:
            data = self._held + data
        end = _end_of_events(data)
        if end == 0 and len(data) > _HELD_BYTES:
            self.is_torn, end = True, len(data)
        elif end:
            self.is_torn = False
        self._held = data[end:]
        sent = data[:end]
        if sent:
            self.count += sent.count(b"data: {")
            self._before, self._last = self._last, sent
            self.is_done = _IS_DONE.search(sent[-_TAIL_BYTES:]) is not None
        return sent

    @property
    def usage(self) -> Tokens | None:
        """What the server says at the end of a whole stream."""
        tail = self._before[-_TAIL_BYTES:] + self._last[-2 * _TAIL_BYTES :]
        found = _USAGE.findall(tail)
        return parse(found[-1]) if self.is_done and found else None

    def rest(self) -> bytes:
        """What is still held back, for a stream that ended well."""
        held, self._held = self._held, b""
        return held

    def close(self, error: ApiError) -> bytes:
        """The events that end it here, as OpenAI's clients read them; none after [DONE]."""
        self._held = b""
        return b"" if self.is_done else event(error.body()) + DONE


def event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(data).encode()


def _end_of_events(data: bytes) -> int:
    if data.endswith((b"\n\n", b"\r\n\r\n")):
        return len(data)
    line_feeds = data.rfind(b"\n\n")
    returns = data.rfind(b"\r\n\r\n")
    return max(line_feeds + 2 if line_feeds >= 0 else 0, returns + 4 if returns >= 0 else 0)
