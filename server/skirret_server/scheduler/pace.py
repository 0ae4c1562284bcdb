"""How many tokens of prompts a step may compute without those who decode noticing."""

from __future__ import annotations

_NEWS = 0.2  # what the last step weighs in an average
_LEAST = 32  # tokens of prompts: however slow they are, they go on


class Pace:
    """Learns from measured steps what a token of a prompt adds to one."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # times as long as a step without prompts
        self._decode: float | None = None  # seconds of a step without prompts
        self._token: float | None = None  # seconds that each token of a prompt adds

    def measured(self, prompt_tokens: int, seconds: float) -> None:
        if not prompt_tokens:
            self._decode = _averaged(self._decode, seconds)
        elif self._decode is not None:
            added = max(seconds - self._decode, 0.0) / prompt_tokens
            self._token = _averaged(self._token, added)

    def room(self, most: int) -> int:
        """Tokens of prompts, at most `most`, that keep the next step short enough."""
        if not self._decode or not self._token:
            return most
        fit = (self._patience - 1) * self._decode / self._token
        return int(min(most, max(_LEAST, fit)))


def _averaged(before: float | None, news: float) -> float:
    return news if before is None else before + _NEWS * (news - before)
