"""Chat completions on the wire: the whole object, and its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skirret_server.api import wire
from skirret_server.api.calling import Calling, Tools
from skirret_server.api.chunks import Frame, Head, usage_fields
from skirret_server.api.generation import Choice, Step, Usage
from skirret_server.api.logprobs import chat_logprobs
from skirret_server.text.choice import Ending, Entry, Piece
from skirret_server.text.tokenizer import Tokenizer


class ChatWire:
    def __init__(
        self,
        head: Head,
        frame: Frame,
        tokenizer: Tokenizer,
        *,
        n: int,
        has_logprobs: bool,
        tools: Tools | None = None,
    ) -> None:
        self._head = head
        self._frame = frame
        self._tokenizer = tokenizer
        self._n = n
        self._has_logprobs = has_logprobs
        self._tools = tools
        self._callings = [Calling(tools) for _ in range(n)] if tools else []
        self._is_plain = tools is None and not has_logprobs

    def opening(self) -> bytes:
        """The role, once for every choice."""
        delta = '{"role":"assistant","content":"","refusal":null}'
        return b"".join(self._chunk(index, delta) for index in range(self._n))

    def chunks(self, step: Step) -> bytes:
        piece, index, out = step.piece, step.index, b""
        if self._is_plain and not piece.reasoning and piece.ending is None:  # nearly every one
            return self._said(index, piece.text) if piece.text else b""
        deltas = self._deltas(index, piece)
        if piece.entries and not deltas:
            deltas = ["{}"]
        last = len(deltas) - 1
        for number, delta in enumerate(deltas):
            entries = piece.entries if number == last else ()
            out += self._chunk(index, delta, self._logprobs(entries))
        if piece.ending is not None:
            out += self._end(index, piece.ending)
        return out

    def _said(self, index: int, text: str) -> bytes:
        return self._chunk(index, f'{{"content":{wire.string(text)}}}')

    def last(self) -> bytes:
        return self._frame.last()

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return {
            **self._head.fields("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_fields(usage),
        }

    def _deltas(self, index: int, piece: Piece) -> list[str]:
        thought = (
            [f'{{"reasoning_content":{wire.string(piece.reasoning)}}}'] if piece.reasoning else []
        )
        if self._tools is None:
            said = [f'{{"content":{wire.string(piece.text)}}}'] if piece.text else []
            return thought + said
        calling = self._callings[index]
        return thought + [
            wire.to_json(delta).decode()
            for delta in calling.deltas(piece.text, is_last=piece.ending is not None)
        ]

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if self._tools is not None:
            message |= self._callings[index].message(choice.text)
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(choice.entries, self._tokenizer)
            if self._has_logprobs
            else None,
            **self._ending(index, choice.ending),
        }

    def _chunk(self, index: int, delta: str, logprobs: str = "null") -> bytes:
        return self._frame.choice(
            f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":null}}'
        )

    def _end(self, index: int, ending: Ending) -> bytes:
        fields = {"index": index, "delta": {}, "logprobs": None, **self._ending(index, ending)}
        return self._frame.choice(wire.to_json(fields).decode())

    def _ending(self, index: int, ending: Ending | None) -> dict[str, Any]:
        fields = ending_fields(ending)
        if self._tools is not None and fields["finish_reason"] == "stop":
            fields["finish_reason"] = self._callings[index].finish_reason
        return fields

    def _logprobs(self, entries: Sequence[Entry]) -> str:
        if not self._has_logprobs:
            return "null"
        return wire.to_json(chat_logprobs(entries, self._tokenizer)).decode()


def ending_fields(ending: Ending | None) -> dict[str, Any]:
    """How it ended, and the stop that did it (SGLang's name for it)."""
    if ending is None:
        return {"finish_reason": None}
    return {"finish_reason": ending.reason, "matched_stop": ending.matched}
