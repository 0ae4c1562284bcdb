"""Keeps control tokens that a caller wrote into a message from becoming control tokens.

Before the template is rendered each one is veiled by a two-letter stand-in from a private plane of
Unicode; when the rendered text is encoded the stand-ins are unveiled in the plain text between the
template's own control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

VEIL = "\U0010fffd"
_FIRST = 0x100000


class ControlTokens:
    """The special tokens of one model, longest first so that none hides in another."""

    def __init__(self, tokens: Iterable[str]) -> None:
        # The veil itself is veiled too, so that nobody can forge a stand-in.
        self._tokens = [*sorted(set(tokens), key=len, reverse=True), VEIL]
        self._stand_ins = {
            token: VEIL + chr(_FIRST + index) for index, token in enumerate(self._tokens)
        }
        self._written = re.compile("|".join(map(re.escape, self._tokens)))
        self._veiled = re.compile(f"{VEIL}(.)", re.DOTALL)

    def veil(self, value: Any) -> Any:
        """The same strings, lists and maps with every control token replaced."""
        if isinstance(value, str):
            return self._written.sub(lambda found: self._stand_ins[found[0]], value)
        if isinstance(value, dict):
            return {key: self.veil(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.veil(item) for item in value]
        return value

    def unveil(self, text: str) -> str:
        return self._veiled.sub(lambda found: self._tokens[ord(found[1]) - _FIRST], text)
