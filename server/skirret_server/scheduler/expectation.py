"""How long sequences will be, as far as it can be guessed."""

from __future__ import annotations

from collections.abc import Iterable

from skirret_server.scheduler.sequence import Sequence

_INITIAL, _FLOOR, _STEPS = 0.7, 0.1, 600
_HORIZON = 4096  # tokens: further ahead than this nothing is reserved
_GRACE = 20  # tokens each sequence may still grow after a retraction without another one


class Expectation:
    """The share of `max_tokens` that sequences are expected to use.

    It falls while the cache suffices, and jumps up when sequences had to be retracted.
    """

    def __init__(self) -> None:
        self.share = _INITIAL

    def tokens(self, sequence: Sequence) -> int:
        """How many more tokens `sequence` is expected to generate."""
        sampling = sequence.request.sampling
        most = min(sampling.max_tokens - sequence.generated, _HORIZON)
        return most if sampling.ignore_eos else int(most * self.share)

    def relax(self) -> None:
        """A step went well."""
        self.share = max(_FLOOR, self.share - (_INITIAL - _FLOOR) / _STEPS)

    def tighten(self, running: Iterable[Sequence]) -> None:
        """A sequence had to be retracted, and these remain."""
        used = most = 0
        for sequence in running:
            used += sequence.generated + _GRACE
            most += sequence.request.sampling.max_tokens
        self.share = max(self.share, min(1.0, used / (most + 1)))
