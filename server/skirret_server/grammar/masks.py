"""Which tokens an automaton lets follow: one bitmask a state, made when it is first asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from skirret_server.core import TokenId
from skirret_server.grammar.automaton import DEAD, START, Automaton

Mask = npt.NDArray[np.uint32]

# Longer tokens are never allowed: they are separators and filler, and cost every mask time.
_LONGEST = 48  # bytes


class Vocabulary:
    """A model's tokens as rows of bytes, the longest first, so that each column is a prefix."""

    def __init__(
        self, tokens: Sequence[bytes], special: Iterable[TokenId], end_tokens: Iterable[TokenId],
        size: int,
    ) -> None:  # fmt: skip
        """`size`: of the model's vocabulary; special tokens are in no text."""
        excluded = frozenset(special)
        usable = [
            (data, token)
            for token, data in enumerate(tokens[:size])
            if 0 < len(data) <= _LONGEST and token not in excluded
        ]
        usable.sort(key=lambda one: len(one[0]), reverse=True)
        self.bytes_of = tokens
        self.end_tokens = frozenset(end_tokens)
        self.words = (size + 31) // 32
        self._ids = np.array([token for _, token in usable], np.int64)
        longest = len(usable[0][0]) if usable else 0
        lengths = np.array([len(data) for data, _ in usable], np.int64)
        self._columns = []
        for column in range(longest):
            tall = int(np.count_nonzero(lengths > column))
            self._columns.append(np.array([data[column] for data, _ in usable[:tall]], np.uint8))
        self._ends = np.zeros(self.words, np.uint32)
        for token in self.end_tokens:
            self._ends[token // 32] |= np.uint32(1 << (token % 32))

    def mask(self, automaton: Automaton, state: int) -> Mask:
        """Bit `i % 32` of word `i // 32` is token i; end tokens where the text may end."""
        mask = self._packed(self._ids[self._alive(automaton, state)])
        if automaton.accepts[state]:
            mask |= self._ends
        mask.flags.writeable = False
        return mask

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

    def _packed(self, ids: npt.NDArray[np.int64]) -> Mask:
        bits = np.zeros(self.words * 32, np.uint8)
        bits[ids] = 1
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)


class MaskCache:
    """The masks asked for last, of all grammars together, within a number of bytes."""

    def __init__(self, vocabulary: Vocabulary, most_bytes: int = 64 << 20) -> None:
        self.vocabulary = vocabulary
        self._most = max(1, most_bytes // (4 * vocabulary.words))
        self._masks: OrderedDict[tuple[int, int], Mask] = OrderedDict()

    def get(self, grammar: int, automaton: Automaton, state: int) -> Mask:
        key = (grammar, state)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = self.vocabulary.mask(automaton, state)
            if len(self._masks) > self._most:
                self._masks.popitem(last=False)
        else:
            self._masks.move_to_end(key)
        return mask


_numbers = count()


class CompiledGrammar:
    """An automaton and this model's masks for it; `start` begins a sequence."""

    def __init__(self, automaton: Automaton, masks: MaskCache) -> None:
        self.automaton = automaton
        self.masks = masks
        self.number = next(_numbers)

    def start(self) -> AutomatonGrammar:
        return AutomatonGrammar(self, START)


class AutomatonGrammar:
    """Implements `core.Grammar`."""

    def __init__(self, compiled: CompiledGrammar, state: int) -> None:
        self._compiled = compiled
        self._state = state

    def allowed(self) -> Mask:
        compiled = self._compiled
        return compiled.masks.get(compiled.number, compiled.automaton, self._state)

    def accept(self, token: TokenId) -> None:
        vocabulary = self._compiled.masks.vocabulary
        self._state = self._compiled.automaton.step(self._state, vocabulary.bytes_of[token])

    def is_complete(self) -> bool:
        return bool(self._compiled.automaton.accepts[self._state])

    def copy(self) -> AutomatonGrammar:
        return AutomatonGrammar(self._compiled, self._state)
