"""Decode steps recorded as graphs, one for each of a few sizes: a launch instead of hundreds.

Within a graph nothing is decided and nothing is new: it reads ids, positions, slots and page tables
where they were when it was recorded, and leaves what it computes in one place. Steps of fewer rows
are filled up with rows that own page 0, where nothing of value is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skirret_server.attention.flashinfer import FlashInfer, Static, StaticMemory
from skirret_server.attention.interface import Layout
from skirret_server.engine.device import Device, Graph
from skirret_server.model.decoder import Decoder

# Rows of a graph: more sizes pad less, and take longer to record and more memory.
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_MOST_PAGES = 4 << 20  # in a step's page table; longer ones are launched kernel by kernel

# B rows, D hidden


def sizes(running: int) -> tuple[int, ...]:
    """Those needed when at most so many sequences run together."""
    largest = next((size for size in SIZES if size >= running), SIZES[-1])
    return tuple(size for size in SIZES if size <= largest)


class Graphs:
    def __init__(
        self,
        decoder: Decoder,
        attention: FlashInfer,
        device: Device,
        sizes: Sequence[int],
        longest: int,
    ) -> None:
        """Records one graph for each of `sizes`; no sequence has more pages than `longest`."""
        most = max(sizes)
        self._decoder = decoder
        self._attention = attention
        self._device = device
        self._capacity = min(most * longest, _MOST_PAGES)
        self._memory = StaticMemory(most, self._capacity, device.place)
        self._ids_B = torch.zeros(most, dtype=torch.int64, device=device.place)
        self._positions_B = torch.zeros(most, dtype=torch.int64, device=device.place)
        hidden = decoder.description.hidden
        self._hidden_BD = torch.zeros(most, hidden, dtype=torch.float32, device=device.place)
        self._sizes = sorted(sizes)
        self._recorded: dict[int, tuple[Graph, Static]] = {}
        # The largest first: the others then find room in its memory.
        for size in reversed(self._sizes):
            self._recorded[size] = self._record(size)

    def size_for(self, layout: Layout) -> int | None:
        """The smallest graph that can compute this step; None when none can or should."""
        rows, attention = len(layout.lengths), self._attention
        if (layout.counts != 1).any() or rows > self._sizes[-1]:
            return None
        size = next(each for each in self._sizes if each >= rows)
        pages = int((-(-layout.lengths // attention.page_size)).sum()) + size - rows
        if pages > self._capacity or attention.is_better_alone(layout):
            return None
        return size

    def hidden(
        self, size: int, ids_B: Tensor, positions_B: npt.NDArray[np.int64], layout: Layout
    ) -> Tensor:
        """x_BD of these rows, to be read before the next call."""
        graph, attention = self._recorded[size]
        rows = len(layout.lengths)
        padded = _padded(layout, size)
        places = np.zeros((2, size), np.int64)
        places[0, :rows] = positions_B
        places[1] = padded.slots
        positions, slots = self._device.put(places)
        self._ids_B[:rows].copy_(ids_B)
        self._positions_B[:size].copy_(positions)
        self._memory.slots[:size].copy_(slots)
        attention.plan(padded)
        graph.replay()
        return self._hidden_BD[:rows]

    def _record(self, size: int) -> tuple[Graph, Static]:
        attention = self._attention.static(size, self._memory)
        graph = self._device.graph()
        with torch.inference_mode():
            attention.plan(_padded(_NOTHING, size))
            self._compute(size, attention)  # libraries set themselves up at first use
            with graph.capture():
                self._compute(size, attention)
        return graph, attention

    def _compute(self, size: int, attention: Static) -> None:
        hidden = self._decoder.hidden(
            self._ids_B[:size], self._positions_B[:size], attention.attend
        )
        self._hidden_BD[:size].copy_(hidden)


_NOTHING = Layout(
    np.zeros(1, np.int32),
    np.zeros(0, np.int32),
    np.zeros((0, 1), np.int32),
    np.zeros(0, np.int64),
)


def _padded(layout: Layout, size: int) -> Layout:
    """Filled up with rows of one token, on page 0."""
    more = size - len(layout.lengths)
    if not more:
        return layout
    return Layout(
        np.arange(size + 1, dtype=np.int32),
        np.pad(layout.lengths, (0, more), constant_values=1),
        np.pad(layout.pages, ((0, more), (0, 0))),
        np.pad(layout.slots, (0, more)),
    )
