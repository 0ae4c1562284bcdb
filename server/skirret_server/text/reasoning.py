"""What a model thinks before it answers, told from the answer token by token."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass

from skirret_server.core import TokenId
from skirret_server.text.tokenizer import Tokenizer

# Tokens at the end of a prompt among which a template may have opened the thinking itself.
_TAIL = 4


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The tokens around the thinking; `is_open` when the prompt ends inside it."""

    opening: TokenId
    closing: TokenId
    is_open: bool = False


def reasoning_of(tokenizer: Tokenizer, prompt: Sequence[TokenId]) -> Reasoning | None:
    """How an answer to this prompt is divided; None for a model that does not think aloud."""
    opening, closing = tokenizer.id_of("<think>"), tokenizer.id_of("</think>")
    if opening is None or closing is None:
        return None
    tail = list(prompt[-_TAIL:])
    is_open = opening in tail and closing not in tail[tail.index(opening) :]
    return Reasoning(opening, closing, is_open)


class ReasoningSplit:
    """One answer, whose first token decides whether it begins with thinking."""

    def __init__(self, reasoning: Reasoning) -> None:
        self.tokens = 0  # of the thinking, its marks included
        self._opening = reasoning.opening
        self._closing = reasoning.closing
        self._is_first = not reasoning.is_open
        self._is_inside = reasoning.is_open
        self._is_between = reasoning.is_open  # white space after a mark belongs to the mark
        self._utf8 = getincrementaldecoder("utf-8")(errors="replace")

    def take(self, token: TokenId, data: bytes) -> str | None:
        """What this token adds to the thinking; None when it is of the answer."""
        if self._is_first:
            self._is_first = False
            self._is_inside = self._is_between = token == self._opening
            if self._is_inside:
                self.tokens += 1
                return ""
        if self._is_inside and token == self._closing:
            self.tokens += 1
            self._is_inside, self._is_between = False, True
            return self._utf8.decode(b"", final=True)
        if self._is_between and data.isspace():
            self.tokens += self._is_inside
            return ""
        self._is_between = False
        if not self._is_inside:
            return None
        self.tokens += 1
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The rest, when the answer ended within the thinking."""
        return self._utf8.decode(b"", final=True) if self._is_inside else ""
