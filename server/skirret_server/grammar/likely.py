"""Where a text has hardly another way to go on: what may be computed before it is drawn."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from skirret_server.grammar.automaton import DEAD, Automaton

NONE = -1  # no byte is likely

_SPACE = 0x20
_LONGEST = 64  # bytes looked ahead


def likely_bytes(automaton: Automaton) -> npt.NDArray[np.int16]:
    """For each state the only byte that may follow, or a space that may be left out; else NONE."""
    table, class_of = automaton.table, automaton.class_of
    sizes = np.bincount(class_of, minlength=table.shape[1])
    lives = table != DEAD
    is_forced = (lives @ sizes == 1) & ~automaton.accepts
    byte_of = np.searchsorted(class_of, np.arange(table.shape[1]))  # classes rise with bytes
    likely = np.where(is_forced, byte_of[lives.argmax(1)], NONE).astype(np.int16)
    likely[_before_optional_space(automaton)] = _SPACE
    return likely


def likely_text(automaton: Automaton, likely: npt.NDArray[np.int16], state: int) -> bytes:
    """The bytes that are likely one after the other. A last space belongs to what comes next."""
    text = bytearray()
    while len(text) < _LONGEST and (byte := int(likely[state])) != NONE:
        text.append(byte)
        state = automaton.step(state, bytes((byte,)))
    return bytes(text.rstrip(b" "))


def _before_optional_space(automaton: Automaton) -> npt.NDArray[np.bool_]:
    """States in which a space may come first, and then just what else may come now."""
    table, space = automaton.table, automaton.class_of[_SPACE]
    after = table[:, space]
    others = np.arange(table.shape[1]) != space
    found: npt.NDArray[np.bool_] = (
        (after != DEAD)
        & (table[after, space] == DEAD)
        & (table[:, others] == table[after][:, others]).all(1)
    )
    return found
