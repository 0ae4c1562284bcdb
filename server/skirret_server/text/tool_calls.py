"""Tool calls as models write them, found in a text that is still being written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic_core import from_json


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls: `opening` call `between` call `closing`."""

    name: str
    opening: str  # "" where a call begins the text
    closing: str
    between: str
    arguments: str  # the key of a call's arguments
    repeats_frame: bool = False  # each call in an opening and closing of its own


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", "\n", "arguments", True)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "]", ", ", "arguments")
LLAMA = ToolFormat("llama", "", "", "; ", "parameters")


FORMATS = {form.name: form for form in (HERMES, MISTRAL, LLAMA)}


def format_of(template: str, parser: str = "auto") -> ToolFormat:
    """The named format; or the one that a chat template teaches, Hermes' where it teaches none."""
    if parser != "auto":
        return FORMATS[parser]
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if '"parameters"' in template or "<|python_tag|>" in template:
        return LLAMA
    return HERMES


@dataclass(frozen=True, slots=True)
class Said:
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """More of the last call's arguments, letter for letter."""

    text: str


Event = Said | Called | Argued

_PYTHON_TAG = "<|python_tag|>"


class ToolParser:
    """Turns text into events as it comes. What turns out to be no call goes out as text."""

    def __init__(self, form: ToolFormat) -> None:
        self.calls = 0
        self._form = form
        self._buffer = ""
        self._state = self._outside
        self._value = _Value()
        self._is_beginning = True
        self._raw = ""  # of the call under way, until its name is known
        self._header = re.compile(
            r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
        )

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        return list(self._run(is_last=False))

    def finish(self) -> list[Event]:
        """What was held back."""
        return list(self._run(is_last=True))

    def _run(self, is_last: bool) -> Iterator[Event]:
        while True:
            before = self._state, len(self._buffer)
            yield from self._state(is_last)
            if before == (self._state, len(self._buffer)):
                return

    def _outside(self, is_last: bool) -> Iterator[Event]:
        if not self._form.opening:
            yield from self._at_the_beginning(is_last)
            return
        at = self._buffer.find(self._form.opening)
        if at >= 0:
            yield from self._say(self._buffer[:at])
            self._buffer = self._buffer[at + len(self._form.opening) :]
            self._raw = self._form.opening
            self._state = self._head
            return
        held = 0 if is_last else _overlap(self._buffer, self._form.opening)
        yield from self._say(self._buffer[: len(self._buffer) - held])
        self._buffer = self._buffer[len(self._buffer) - held :]

    def _at_the_beginning(self, is_last: bool) -> Iterator[Event]:
        """Without a marker only a text that is a call from its first letter is one."""
        text = self._buffer.lstrip().removeprefix(_PYTHON_TAG).lstrip()
        may_be = self._is_beginning and (
            text.startswith("{") or not text or _PYTHON_TAG.startswith(self._buffer.lstrip())
        )
        if self._is_beginning and text.startswith("{"):
            self._buffer, self._raw = text, ""
            self._state = self._head
        elif is_last or not may_be:
            self._is_beginning = False
            yield from self._say(self._buffer)
            self._buffer = ""

    def _say(self, text: str) -> Iterator[Event]:
        """White space between calls is none of the answer."""
        if text and not (self.calls and text.isspace()):
            yield Said(text)

    def _head(self, is_last: bool) -> Iterator[Event]:
        """Waits for a call's name."""
        if self.calls or self._form is MISTRAL:
            trimmed = self._buffer.lstrip(" \n\t[,;")
            self._raw += self._buffer[: len(self._buffer) - len(trimmed)]
            self._buffer = trimmed
        found = self._header.match(self._buffer)
        name = _string(found[1]) if found else None
        if found and name is not None:
            self.calls += 1
            yield Called(name)
            self._buffer = self._buffer[found.end() :]
            self._value = _Value()
            self._state = self._arguments
            return
        end = self._buffer.find(self._form.closing) if self._form.closing else -1
        if end >= 0 or is_last:
            after = len(self._buffer) if end < 0 else end + len(self._form.closing)
            call = self._buffer if end < 0 else self._buffer[:end]
            yield from self._other_order(call, self._raw + self._buffer[:after])
            self._buffer = self._buffer[after:]
            self._is_beginning = False
            self._state = self._outside

    def _other_order(self, text: str, written: str) -> Iterator[Event]:
        """A call whose keys come differently; or no call at all, and so it stays as written."""
        try:
            call = from_json(text)
            name = call["name"]
            arguments = call.get("arguments", call.get("parameters")) or {}
        except (ValueError, TypeError, KeyError, AttributeError):
            if written.strip(" \n\t[,;"):
                yield Said(written)
            return
        if not isinstance(name, str):
            yield Said(written)
            return
        self.calls += 1
        yield Called(name)
        yield Argued(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def _arguments(self, is_last: bool) -> Iterator[Event]:
        end = self._value.end(self._buffer)
        out = self._buffer if end is None else self._buffer[:end]
        self._buffer = self._buffer[len(out) :]
        if out:
            yield Argued(out)
        if end is not None:
            self._state = self._tail

    def _tail(self, is_last: bool) -> Iterator[Event]:
        """Behind the arguments: the call's own end, then another call or the frame's."""
        rest = self._buffer.lstrip(" \n\t}")
        closing = self._form.closing
        if closing and rest.startswith(closing):
            self._buffer = rest[len(closing) :]
            self._state = self._outside
        elif rest[:1] in (",", ";"):
            self._buffer, self._raw = rest, ""
            self._state = self._head
        elif is_last:
            self._buffer = ""
        elif rest and not closing.startswith(rest):
            self._buffer = rest
            self._is_beginning = False
            self._state = self._outside
        return
        yield


class _Value:
    """Finds where a JSON object ends, over as many pieces as it comes in."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def end(self, text: str) -> int | None:
        for index, character in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1
        return None


def _string(text: str) -> str | None:
    """A JSON string's value; None where models write what isn't one."""
    try:
        value: str = from_json(text)
    except ValueError:
        return None
    return value


def _overlap(text: str, marker: str) -> int:
    """How much of the text's end may be the beginning of the marker."""
    longest = min(len(text), len(marker) - 1)
    return next((k for k in range(longest, 0, -1) if marker.startswith(text[-k:])), 0)
