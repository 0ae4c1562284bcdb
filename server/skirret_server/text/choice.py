"""The text of one choice, from the engine's updates: whole characters, stops and logprobs in step.

Plain answers and streams are made from the same pieces; joined, they are the answer.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skirret_server.core import Finish, FinishReason, Logprob, TokenId, Update
from skirret_server.text.reasoning import Reasoning, ReasoningSplit
from skirret_server.text.stops import StopPattern, StopScan, StopStrings
from skirret_server.text.tokenizer import Tokenizer

_Utf8Decoder = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class Entry:
    """The logprobs of one token, and where its text begins among the generated characters."""

    offset: int
    logprob: Logprob


@dataclass(frozen=True, slots=True)
class Ending:
    reason: FinishReason
    matched: str | TokenId | None = None  # the stop string, or the end or stop token


@dataclass(slots=True)  # not frozen, as `core.Update`
class Piece:
    """What one update let out; any part may be empty."""

    text: str
    entries: tuple[Entry, ...] = ()
    ending: Ending | None = None
    reasoning: str = ""  # thought before the text


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a request wants its text cut."""

    stops: StopStrings | None = None
    patterns: tuple[StopPattern, ...] = ()
    min_tokens: int = 0  # stops begin to count after these
    skip_special_tokens: bool = True
    keeps_stop: bool = False  # no_stop_trim: the match stays in the text
    shown_tokens: frozenset[TokenId] = frozenset()  # special ones that are text all the same
    reasoning: Reasoning | None = None  # kept out of the text; stops are not looked for in it


class ChoiceText:
    """Turns updates into pieces. After a piece with an ending the caller ends the sequence."""

    def __init__(self, tokenizer: Tokenizer, rules: TextRules, prompt_tail: bytes = b"") -> None:
        """`prompt_tail`: bytes of a character that the prompt leaves unfinished."""
        self.completion_tokens = 0
        self._tokenizer = tokenizer
        self._rules = rules
        hides = tokenizer.special_ids if rules.skip_special_tokens else frozenset()
        self._hidden = hides - rules.shown_tokens if rules.shown_tokens else hides
        self._scan = (
            StopScan(rules.stops, rules.patterns, keeps_match=rules.keeps_stop)
            if rules.stops or rules.patterns
            else None
        )
        self._split = ReasoningSplit(rules.reasoning) if rules.reasoning else None
        self._thought = ""  # since the last piece
        self._is_plain = self._scan is None and self._split is None
        self._utf8 = _Utf8Decoder(errors="replace")
        self._utf8.decode(prompt_tail)
        # Characters: [0, released) are out, [released, decoded) are held as a possible stop.
        self._released = 0
        self._decoded = 0
        self._pending: deque[tuple[int, Entry]] = deque()  # with the character where each ends

    def feed(self, update: Update) -> Piece:
        if self._is_plain and update.finish is None and not update.logprobs:
            return Piece(self._plain(update.tokens))
        out: list[str] = []
        last = len(update.tokens) - 1
        for index, token in enumerate(update.tokens):
            self.completion_tokens += 1
            is_stop = index == last and _stopped_by(update.finish, token)
            if is_stop and not self._rules.keeps_stop:
                break
            out.append(self._take(token, update.logprobs[index] if update.logprobs else None))
            if self._matched is not None:
                return self._piece(out, Ending("stop", self._matched))
        if update.finish is None:
            return self._piece(out)
        out.append(self._flush())
        if self._matched is not None:
            return self._piece(out, Ending("stop", self._matched))
        return self._piece(out, Ending(update.finish.reason, update.finish.stop_token))

    @property
    def reasoning_tokens(self) -> int:
        return self._split.tokens if self._split else 0

    @property
    def _matched(self) -> str | None:
        return self._scan.matched if self._scan else None

    def _plain(self, tokens: Sequence[TokenId]) -> str:
        """What nothing holds back: the whole characters."""
        self.completion_tokens += len(tokens)
        shown = [token for token in tokens if token not in self._hidden]
        text = self._utf8.decode(self._tokenizer.join(shown))
        self._decoded += len(text)
        self._released += len(text)
        return text

    def _take(self, token: TokenId, logprob: Logprob | None) -> str:
        if self._split is not None:
            thought = self._split.take(token, self._tokenizer.bytes_of(token))
            if thought is not None:
                self._thought += thought
                return ""
        is_hidden = token in self._hidden
        start = self._decoded
        text = self._utf8.decode(b"" if is_hidden else self._tokenizer.bytes_of(token))
        self._decoded += len(text)
        if logprob is not None:
            # A character begun here but not ended is where this token's text ends.
            is_open = bool(self._utf8.getstate()[0])
            self._pending.append((self._decoded + is_open, Entry(start, logprob)))
        return self._release(text)

    def _release(self, text: str) -> str:
        if self._scan and text and self.completion_tokens >= self._rules.min_tokens:
            text = self._scan.feed(text)
        self._released += len(text)
        return text

    def _flush(self) -> str:
        if self._split is not None:
            self._thought += self._split.flush()
        rest = self._utf8.decode(b"", final=True)
        self._decoded += len(rest)
        out = self._release(rest)
        if self._scan and self._matched is None:
            held = self._scan.flush()
            self._released += len(held)
            out += held
        return out

    def _piece(self, out: Iterable[str], ending: Ending | None = None) -> Piece:
        entries = tuple(self._entries(ending is not None)) if self._pending else ()
        thought, self._thought = self._thought, ""
        return Piece("".join(out), entries, ending, thought)

    def _entries(self, is_last: bool) -> Iterable[Entry]:
        while self._pending:
            end, entry = self._pending[0]
            # At the end a token counts when any of its text stayed.
            is_out = end <= self._released or (is_last and entry.offset < self._released)
            if not is_out:
                return
            self._pending.popleft()
            yield entry


def incomplete_tail(data: bytes) -> bytes:
    """The bytes at the end of `data` that begin a character and don't end it."""
    utf8 = _Utf8Decoder(errors="replace")
    utf8.decode(data[-4:])
    return utf8.getstate()[0]


def _stopped_by(finish: Finish | None, token: TokenId) -> bool:
    return finish is not None and finish.stop_token == token
