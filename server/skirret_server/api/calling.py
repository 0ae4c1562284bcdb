"""The tool calls of one choice, as deltas of a stream and as a whole message."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from skirret_server.text.tool_calls import Argued, Called, Event, Said, ToolFormat, ToolParser


@dataclass(frozen=True, slots=True)
class Tools:
    """How calls are found in an answer, and how many count."""

    form: ToolFormat
    is_single: bool  # later ones are dropped: the caller wants one at most
    is_named: bool  # tool_choice named the function


class Calling:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._parser = ToolParser(tools.form)
        self._calls = 0

    @property
    def finish_reason(self) -> str:
        """Of an answer that ended by itself. A named call ends with "stop": OpenAI's odd rule."""
        return "tool_calls" if self._calls and not self._tools.is_named else "stop"

    def deltas(self, text: str, *, is_last: bool) -> Iterator[dict[str, Any]]:
        events = self._parser.feed(text) if text else []
        if is_last:
            events += self._parser.finish()
        for event in events:
            delta = self._delta(event)
            if delta is not None:
                yield delta

    def message(self, text: str) -> dict[str, Any]:
        """Content and calls of the whole text."""
        content, calls = "", list[dict[str, Any]]()
        for delta in self.deltas(text, is_last=True):
            content += delta.get("content", "")
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    calls.append({key: part[key] for key in ("id", "type", "function")})
                else:
                    calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        if not calls:
            return {"content": content}
        return {"content": content or None, "tool_calls": calls}

    def _delta(self, event: Event) -> dict[str, Any] | None:
        if isinstance(event, Said):
            return {"content": event.text}
        if isinstance(event, Called):
            self._calls += 1
        if self._calls > 1 and self._tools.is_single:
            return None
        index = self._calls - 1
        if isinstance(event, Argued):
            return {"tool_calls": [{"index": index, "function": {"arguments": event.text}}]}
        call = {
            "index": index,
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": event.name, "arguments": ""},
        }
        return {"tool_calls": [call]}
