"""A multipart/form-data body taken apart as it comes, so that no file is ever held in memory."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from skirret_api.errors import InvalidRequest

_EXTENDED = re.compile(
    rb";\s*filename\*\s*=\s*\"?([A-Za-z0-9-]+)'[^';]*'([^;\"\s]+)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class PartBegins:
    name: str
    filename: str | None  # None: a plain field


@dataclass(frozen=True, slots=True)
class PartData:
    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnds:
    pass


Event = PartBegins | PartData | PartEnds


async def events(content_type: str, body: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """What the body holds, in order. Raises InvalidRequest for a body that isn't a whole form."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidRequest(
            "The body must be multipart/form-data with a boundary.", code="invalid_content_type"
        )
    collector = _Collector()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_data": collector.part_data,
                "on_part_end": collector.part_end,
                "on_header_field": collector.header_field,
                "on_header_value": collector.header_value,
                "on_header_end": collector.header_end,
                "on_headers_finished": collector.headers_finished,
                "on_end": collector.end,
            },
        )
        async for piece in body:
            parser.write(piece)
            for event in collector.take():
                yield event
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"The multipart body is malformed: {error}.") from error
    if not collector.is_whole:
        raise InvalidRequest("The multipart body ends before its closing boundary.")


@dataclass(slots=True)
class _Collector:
    """The parser's callbacks."""

    is_whole: bool = False
    _events: list[Event] = field(default_factory=list)
    _disposition: bytes = b""
    _name: bytearray = field(default_factory=bytearray)
    _value: bytearray = field(default_factory=bytearray)

    def take(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        filename = _extended(self._disposition)
        if filename is None and b"filename" in options:
            filename = options[b"filename"].decode("utf-8", "replace")
        self._disposition = b""
        name = options.get(b"name", b"").decode("utf-8", "replace")
        self._events.append(PartBegins(name, filename))

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(PartData(data[start:end]))

    def part_end(self) -> None:
        self._events.append(PartEnds())

    def end(self) -> None:
        self.is_whole = True


def _extended(disposition: bytes) -> str | None:
    """A name that isn't ASCII as some clients send it: filename*=UTF-8''n%C3%A9e.txt (RFC 5987)."""
    match = _EXTENDED.search(disposition)
    if match is None:
        return None
    charset = "latin-1" if match[1].lower() == b"iso-8859-1" else "utf-8"
    return unquote_to_bytes(match[2]).decode(charset, "replace")
