"""Responses on the wire: items that grow, as events of a stream and as one object."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skirret_server.api import wire
from skirret_server.api.calling import Calling, Tools
from skirret_server.api.chunks import Head
from skirret_server.api.generation import Choice, Step, Usage
from skirret_server.api.logprobs import chat_logprobs
from skirret_server.text.choice import Ending, Entry, Piece
from skirret_server.text.tokenizer import Tokenizer

Event = dict[str, Any]


class ResponsesWire:
    def __init__(
        self,
        head: Head,
        echo: Mapping[str, Any],
        usage: Usage,
        tokenizer: Tokenizer,
        *,
        has_logprobs: bool,
        tools: Tools | None = None,
    ) -> None:
        """`echo`: what the answer repeats of the request. Log-probabilities are of text alone."""
        self._head = head
        self._echo = echo
        self._usage = usage
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._calling = Calling(tools) if tools else None
        self._items: list[dict[str, Any]] = []  # those that are done
        self._open: _Item | None = None
        self._ending: Ending | None = None
        self._count = 0  # of events

    def opening(self) -> bytes:
        return b"".join(
            self._written({"type": f"response.{kind}", "response": self._response("in_progress")})
            for kind in ("created", "in_progress")
        )

    def chunks(self, step: Step) -> bytes:
        return b"".join(map(self._written, self._take(step.piece)))

    def last(self) -> bytes:
        status = self._status
        return self._written({"type": f"response.{status}", "response": self._response(status)})

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        (choice,) = choices
        piece = Piece(choice.text, tuple(choice.entries), choice.ending, choice.reasoning)
        for _ in self._take(piece):
            pass
        return self._response(self._status)

    @property
    def _status(self) -> str:
        return "incomplete" if self._ending and self._ending.reason == "length" else "completed"

    def _take(self, piece: Piece) -> Iterator[Event]:
        """What the stream says of a piece; the items have it then."""
        if piece.reasoning:
            yield from self._said("reasoning", piece.reasoning, ())
        entries = piece.entries
        is_last = piece.ending is not None
        for delta in self._deltas(piece.text, is_last):
            for call in delta.get("tool_calls", ()):
                yield from self._called(call)
            if "content" in delta:
                yield from self._said("message", delta["content"], entries)
                entries = ()
        if piece.ending is not None:
            self._ending = piece.ending
            if self._open is None and not self._items:
                yield from self._said("message", "", entries)
            yield from self._close(self._status)

    def _deltas(self, text: str, is_last: bool) -> Iterator[dict[str, Any]]:
        if self._calling is not None:
            yield from self._calling.deltas(text, is_last=is_last)
        elif text:
            yield {"content": text}

    def _said(self, kind: str, text: str, entries: Sequence[Entry]) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._close("completed")
            self._open = _Text(kind, len(self._items))
            yield from self._open.added()
        logprobs = self._logprobs(entries)
        yield from self._open.grown(text, logprobs)

    def _called(self, call: Mapping[str, Any]) -> Iterator[Event]:
        if "id" in call:
            yield from self._close("completed")
            self._open = _Call(len(self._items), call["id"], call["function"]["name"])
            yield from self._open.added()
        elif self._open is not None:
            yield from self._open.grown(call["function"]["arguments"], [])

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is None:
            return
        yield from self._open.done(status)
        self._items.append(self._open.item(status))
        self._open = None

    def _logprobs(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        if not self._has_logprobs:
            return []
        found: list[dict[str, Any]] = chat_logprobs(entries, self._tokenizer)["content"]
        return found

    def _written(self, event: Event) -> bytes:
        data = {**event, "sequence_number": self._count}
        self._count += 1
        return f"event: {event['type']}\n".encode() + wire.event(data)

    def _response(self, status: str) -> dict[str, Any]:
        has_ended = status != "in_progress"
        tier = self._head.service_tier
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "model": self._head.model,
            "output": list(self._items),
            **self._echo,
            **({} if tier is None else {"service_tier": tier}),
            "usage": _usage(self._usage) if has_ended else None,
        }


@dataclass(slots=True)
class _Item(ABC):
    """One item of the output, while it grows."""

    kind: str
    index: int
    id: str = ""
    text: str = ""

    def added(self) -> Iterator[Event]:
        yield self._event("output_item.added", item=self.item("in_progress"))

    @abstractmethod
    def grown(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]: ...

    def done(self, status: str) -> Iterator[Event]:
        yield self._event("output_item.done", item=self.item(status))

    @abstractmethod
    def item(self, status: str) -> dict[str, Any]: ...

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"response.{kind}", "output_index": self.index, **fields}


@dataclass(slots=True)
class _Text(_Item):
    """A message, or what was thought before it."""

    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.id = ("msg_" if self.kind == "message" else "rs_") + secrets.token_hex(24)

    def added(self) -> Iterator[Event]:
        yield from _Item.added(self)
        yield self._of_part("content_part.added", part=self._part())

    def grown(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        self.text += text
        self.logprobs += logprobs
        if text and self.kind == "message":
            yield self._of_part("output_text.delta", delta=text, logprobs=logprobs)
        elif text:
            yield self._of_part("reasoning_text.delta", delta=text)

    def done(self, status: str) -> Iterator[Event]:
        if self.kind == "message":
            yield self._of_part("output_text.done", text=self.text, logprobs=self.logprobs)
        else:
            yield self._of_part("reasoning_text.done", text=self.text)
        yield self._of_part("content_part.done", part=self._part())
        yield from _Item.done(self, status)

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        head = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "message":
            return {**head, "role": "assistant", "content": content}
        return {**head, "summary": [], "content": content}

    def _part(self) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": list(self.logprobs),
        }

    def _of_part(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self.id, content_index=0, **fields)


class _Call(_Item):
    def __init__(self, index: int, call_id: str, name: str) -> None:
        super().__init__("function_call", index, "fc_" + secrets.token_hex(24))
        self._call_id = call_id
        self._name = name

    def grown(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        self.text += text
        yield self._event("function_call_arguments.delta", item_id=self.id, delta=text)

    def done(self, status: str) -> Iterator[Event]:
        yield self._event("function_call_arguments.done", item_id=self.id, arguments=self.text)
        yield from super().done(status)

    def item(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.text,
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
