"""What every attention implements: plan a step once, then attend layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from skirret_server.model.decoder import Attend

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of a step lie: B rows, each some new tokens of one sequence, end to end.

    On the host, so that planning never waits for a device.
    """

    starts: Int32s  # (B + 1): row b is tokens [starts[b], starts[b + 1]) of the step
    lengths: Int32s  # (B): tokens of the sequence, this step's included
    pages: Int32s  # (B, most pages): of each sequence in order, padded with page 0
    slots: npt.NDArray[np.int64]  # (T): page * page_size + offset where each token's KV goes

    @property
    def counts(self) -> Int32s:
        return np.diff(self.starts)


class Attention(Protocol):
    """Causal: a token sees its sequence up to itself."""

    def plan(self, layout: Layout) -> Attend:
        """Everything about the step that is the same in all layers."""
