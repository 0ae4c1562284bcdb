"""Chat completions on the wire: the whole object, and its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skirret_server.api import wire
from skirret_server.api.chunks import Frame, Head, usage_fields
from skirret_server.api.generation import Choice, Step, Usage
from skirret_server.api.logprobs import chat_logprobs
from skirret_server.text.choice import Ending, Entry
from skirret_server.text.tokenizer import Tokenizer


class ChatWire:
    def __init__(
        self, head: Head, frame: Frame, tokenizer: Tokenizer, *, n: int, has_logprobs: bool
    ) -> None:
        self._head = head
        self._frame = frame
        self._tokenizer = tokenizer
        self._n = n
        self._has_logprobs = has_logprobs

    def opening(self) -> bytes:
        """The role, once for every choice."""
        delta = '{"role":"assistant","content":"","refusal":null}'
        return b"".join(self._chunk(index, delta) for index in range(self._n))

    def chunks(self, step: Step) -> bytes:
        piece, out = step.piece, b""
        if piece.text or piece.entries:
            content = f'{{"content":{wire.string(piece.text)}}}' if piece.text else "{}"
            out = self._chunk(step.index, content, self._logprobs(piece.entries))
        if piece.ending is not None:
            out += self._end(step.index, piece.ending)
        return out

    def last(self) -> bytes:
        return self._frame.last()

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return {
            **self._head.fields("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_fields(usage),
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.entries, self._tokenizer)
            if self._has_logprobs
            else None,
            **ending_fields(choice.ending),
        }

    def _chunk(self, index: int, delta: str, logprobs: str = "null") -> bytes:
        return self._frame.choice(
            f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":null}}'
        )

    def _end(self, index: int, ending: Ending) -> bytes:
        fields = {"index": index, "delta": {}, "logprobs": None, **ending_fields(ending)}
        return self._frame.choice(wire.to_json(fields).decode())

    def _logprobs(self, entries: Sequence[Entry]) -> str:
        if not self._has_logprobs:
            return "null"
        return wire.to_json(chat_logprobs(entries, self._tokenizer)).decode()


def ending_fields(ending: Ending | None) -> dict[str, Any]:
    """How it ended, and the stop that did it (SGLang's name for it)."""
    if ending is None:
        return {"finish_reason": None}
    return {"finish_reason": ending.reason, "matched_stop": ending.matched}
