"""Text completions on the wire: the whole object, and its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skirret_server.api import wire
from skirret_server.api.chat_wire import ending_fields
from skirret_server.api.chunks import Frame, Head, usage_fields
from skirret_server.api.generation import Choice, Step, Usage
from skirret_server.api.logprobs import completion_logprobs, prompt_offsets
from skirret_server.api.prompts import Prompt
from skirret_server.core import Logprob
from skirret_server.text.choice import Ending, Entry
from skirret_server.text.tokenizer import Tokenizer


class TextWire:
    def __init__(
        self,
        head: Head,
        frame: Frame,
        tokenizer: Tokenizer,
        *,
        prompts: Sequence[Prompt],
        n: int,
        echo: bool,
        logprobs: int | None,
    ) -> None:
        """Choice number i answers prompt i // n."""
        self._head = head
        self._frame = frame
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._n = n
        self._echo = echo
        self._top = logprobs
        self._is_new = [True] * (n * len(prompts))

    def opening(self) -> bytes:
        return b""

    def chunks(self, step: Step) -> bytes:
        piece, out = step.piece, b""
        if self._is_new[step.index]:
            self._is_new[step.index] = False
            out += self._echoed(step.index, step.prompt_logprobs)
        if piece.text or piece.entries:
            out += self._chunk(
                step.index, piece.text, self._logprobs(step.index, piece.entries, None)
            )
        if piece.ending is not None:
            out += self._end(step.index, piece.ending)
        return out

    def last(self) -> bytes:
        return self._frame.last()

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return {
            **self._head.fields("text_completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_fields(usage),
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        prompt = self._prompts[index // self._n].text if self._echo else ""
        return {
            "index": index,
            "text": prompt + choice.text,
            "logprobs": self._logprobs(index, choice.entries, choice.prompt_logprobs),
            **ending_fields(choice.ending),
        }

    def _echoed(self, index: int, logprobs: Sequence[Logprob | None] | None) -> bytes:
        if not self._echo:
            return b""
        return self._chunk(
            index, self._prompts[index // self._n].text, self._logprobs(index, (), logprobs)
        )

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None) -> bytes:
        shown = "null" if logprobs is None else wire.to_json(logprobs).decode()
        return self._frame.choice(
            f'{{"index":{index},"text":{wire.string(text)},"logprobs":{shown},'
            '"finish_reason":null}'
        )

    def _end(self, index: int, ending: Ending) -> bytes:
        fields = {"index": index, "text": "", "logprobs": None, **ending_fields(ending)}
        return self._frame.choice(wire.to_json(fields).decode())

    def _logprobs(
        self,
        index: int,
        entries: Sequence[Entry],
        of_prompt: Sequence[Logprob | None] | None,
    ) -> dict[str, Any] | None:
        if self._top is None:
            return None
        prompt = self._prompts[index // self._n]
        rows: list[tuple[int, Logprob | None, int]] = []
        if of_prompt is not None:
            offsets = prompt_offsets(prompt.ids, prompt.text, self._tokenizer)
            rows += zip(offsets, of_prompt, prompt.ids, strict=True)
        start = len(prompt.text)
        rows += [(start + e.offset, e.logprob, e.logprob.token) for e in entries]
        return completion_logprobs(rows, self._top, self._tokenizer)
