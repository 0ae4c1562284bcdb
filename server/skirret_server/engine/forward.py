"""The model's part of a step on one device: from ids to logits, with nothing to be decided."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skirret_server.attention.interface import Attention, Layout
from skirret_server.engine.device import Device
from skirret_server.engine.graphs import Graphs
from skirret_server.engine.pool import KvPool
from skirret_server.model.decoder import Decoder

Int64s = npt.NDArray[np.int64]

# T tokens of the step, R of them whose logits are wanted, V vocabulary


@dataclass(frozen=True, slots=True)
class Batch:
    """A step as every device that computes it has to know it; ids come separately."""

    layout: Layout
    positions: Int64s  # (T)
    wanted: tuple[Int64s, ...]  # tokens whose logits are wanted, as many as may exist at once


class Forward:
    """A model, its attention and its KV pool."""

    def __init__(
        self,
        decoder: Decoder,
        attention: Attention,
        pool: KvPool,
        device: Device,
        graphs: Graphs | None = None,
    ) -> None:
        self.device = device
        self.pool = pool
        self.graphs = graphs
        self._decoder = decoder
        self._attention = attention

    @torch.inference_mode()
    def logits(self, batch: Batch, ids_T: Tensor) -> Generator[Tensor, None, None]:
        """logits_RV of each of `wanted`, each computed when it is asked for."""
        return self._logits(self._hidden(batch, ids_T), batch.wanted)

    @torch.inference_mode()
    def warm(self) -> None:
        """Computes a prompt and a decode on page 0, where nothing of value is.

        Libraries compile at first use, for minutes: better now than within somebody's step.
        """
        two = 2 if self.pool.page_size == 1 else 1
        layout = Layout(
            np.array([0, 2, 3], np.int32),
            np.array([2, 1], np.int32),
            np.zeros((2, two), np.int32),
            np.zeros(3, np.int64),
        )
        ids_T = self.device.put(np.zeros(3, np.int64))
        positions_T = self.device.put(np.array([0, 1, 0]))
        attend = self._attention.plan(layout)
        self._decoder.logits(self._decoder.hidden(ids_T, positions_T, attend))

    def wipe(self, pages: list[int]) -> None:
        self.pool.wipe(pages)

    def _hidden(self, batch: Batch, ids_T: Tensor) -> Tensor:
        size = None if self.graphs is None else self.graphs.size_for(batch.layout)
        if self.graphs is not None and size is not None:
            return self.graphs.hidden(size, ids_T, batch.positions, batch.layout)
        positions_T = self.device.put(batch.positions)
        return self._decoder.hidden(ids_T, positions_T, self._attention.plan(batch.layout))

    @torch.inference_mode()
    def _logits(self, hidden: Tensor, wanted: tuple[Int64s, ...]) -> Generator[Tensor, None, None]:
        for tokens in wanted:
            yield self._decoder.logits(hidden.index_select(0, self.device.put(tokens)))
