"""Which tokens an automaton lets follow: one set a state, made when it is first asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from skirret_server.core import TokenId, TokenSet
from skirret_server.grammar.automaton import DEAD, START, Automaton
from skirret_server.grammar.likely import NONE, likely_text
from skirret_server.grammar.spec import Spec

# Longer tokens are never allowed: they are separators and filler, and cost every mask time.
_LONGEST = 48  # bytes
_GUESSES = 4096  # remembered for each grammar
_ENTRY = 500  # bytes that a set takes beside its ids


class Vocabulary:
    """A model's tokens as rows of bytes, the longest first, so that each column is a prefix."""

    def __init__(
        self, tokens: Sequence[bytes], special: Iterable[TokenId], end_tokens: Iterable[TokenId],
        size: int, encode: Callable[[str], Sequence[TokenId]] | None = None,
    ) -> None:  # fmt: skip
        """`size`: of the model's vocabulary; special and end tokens are in no text.

        `encode`: tokens of a text in the middle of another; without it nothing is guessed.
        """
        excluded = frozenset(special).union(end_tokens)
        lengths = np.fromiter(map(len, tokens[:size]), np.int64)
        lengths[[token for token in excluded if token < len(lengths)]] = 0
        lengths[lengths > _LONGEST] = 0
        ids = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        self.bytes_of = tokens
        self._encode = encode
        self.end_tokens = frozenset(end_tokens)
        self.size = size
        self._ids = ids
        self._columns = _columns([tokens[token] for token in ids.tolist()])
        self._ends = np.array(sorted(self.end_tokens), np.int64)

    def allowed(self, automaton: Automaton, state: int) -> TokenSet:
        """Those after which the text can still match; end tokens where it may end."""
        ids = self._ids[self._alive(automaton, state)]
        if automaton.accepts[state]:
            ids = np.concatenate([ids, self._ends])
        if 2 * len(ids) <= self.size:
            return TokenSet(ids)
        is_out = np.ones(self.size, bool)
        is_out[ids] = False
        return TokenSet(np.flatnonzero(is_out), are_excluded=True)

    def tokens(self, last: TokenId, text: bytes) -> tuple[TokenId, ...]:
        """`text` after the token `last`; none where it begins inside a character."""
        before = self.bytes_of[last] if last < len(self.bytes_of) else b""
        for start in (before, b""):
            try:
                ids = self._encode((start + text).decode()) if self._encode and text else ()
            except UnicodeDecodeError:
                continue
            if not start:
                return tuple(ids)
            if ids and ids[0] == last:
                return tuple(ids[1:])
        return ()

    def _alive(self, automaton: Automaton, state: int) -> npt.NDArray[np.int64]:
        """Rows of the tokens that lead to a state that isn't dead."""
        classes = automaton.table.shape[1]
        flat = automaton.table.reshape(-1)
        row = automaton.table[state][automaton.class_of]  # the next state for each byte
        states = row[self._columns[0]] if self._columns else np.zeros(0, np.int32)
        rows = np.nonzero(states != DEAD)[0]
        states = states[rows]
        done = []
        for column in self._columns[1:]:
            # Rows are sorted by length: those that end here are the last ones.
            cut = int(np.searchsorted(rows, len(column)))
            done.append(rows[cut:])
            rows, states = rows[:cut], states[:cut]
            if not len(rows):
                break
            states = flat[states * classes + automaton.class_of[column[rows]]]
            alive = states != DEAD
            rows, states = rows[alive], states[alive]
        return np.concatenate([*done, rows])


def _columns(rows: Sequence[bytes]) -> list[npt.NDArray[np.uint8]]:
    """The first byte of each row, then the second of those that have one, and so on."""
    text = np.frombuffer(b"".join(rows), np.uint8)
    lengths = np.fromiter(map(len, rows), np.int64)
    starts = np.cumsum(lengths) - lengths
    longest = int(lengths[0]) if len(rows) else 0
    return [text[starts[lengths > column] + column] for column in range(longest)]


class MaskCache:
    """The sets asked for last, of all grammars together, within a number of bytes."""

    def __init__(self, vocabulary: Vocabulary, most_bytes: int = 64 << 20) -> None:
        self.vocabulary = vocabulary
        self._room = most_bytes
        self._sets: OrderedDict[tuple[int, int], TokenSet] = OrderedDict()

    def get(self, grammar: int, automaton: Automaton, state: int) -> TokenSet:
        key = (grammar, state)
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = self.vocabulary.allowed(automaton, state)
            self._room -= _bytes(found)
            while self._room < 0 and len(self._sets) > 1:
                self._room += _bytes(self._sets.popitem(last=False)[1])
        else:
            self._sets.move_to_end(key)
        return found


def _bytes(tokens: TokenSet) -> int:
    return tokens.ids.nbytes + _ENTRY


_numbers = count()


class CompiledGrammar:
    """An automaton and this model's masks for it; `start` begins a sequence."""

    def __init__(
        self,
        automaton: Automaton,
        likely: npt.NDArray[np.int16],
        masks: MaskCache,
        spec: Spec | None = None,
    ) -> None:
        """`spec`: what was asked for, where it shall be checked again."""
        self.spec = spec
        self.automaton = automaton
        self.likely = likely
        self.masks = masks
        self.number = next(_numbers)
        self._guesses: dict[tuple[int, TokenId], tuple[TokenId, ...]] = {}

    def start(self) -> AutomatonGrammar:
        return AutomatonGrammar(self, START)

    def guess(self, state: int, last: TokenId) -> tuple[TokenId, ...]:
        """The likely text as the model's tokenizer would write it after the token `last`."""
        if self.likely[state] == NONE:
            return ()
        known = self._guesses.get((state, last))
        if known is None:
            if len(self._guesses) >= _GUESSES:
                self._guesses.clear()
            text = likely_text(self.automaton, self.likely, state)
            known = self._guesses[state, last] = self.masks.vocabulary.tokens(last, text)
        return known


class AutomatonGrammar:
    """Implements `core.Grammar`."""

    def __init__(self, compiled: CompiledGrammar, state: int) -> None:
        self._compiled = compiled
        self._state = state

    def allowed(self) -> TokenSet:
        compiled = self._compiled
        return compiled.masks.get(compiled.number, compiled.automaton, self._state)

    def accept(self, token: TokenId) -> None:
        vocabulary = self._compiled.masks.vocabulary
        self._state = self._compiled.automaton.step(self._state, vocabulary.bytes_of[token])

    def is_complete(self) -> bool:
        return bool(self._compiled.automaton.accepts[self._state])

    def guess(self, last: TokenId) -> tuple[TokenId, ...]:
        return self._compiled.guess(self._state, last)

    def copy(self) -> AutomatonGrammar:
        return AutomatonGrammar(self._compiled, self._state)
