"""The KV cache's memory. Which page is whose, `cache` decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skirret_server.model.description import Description

# L layers, P pages, S tokens of a page, K key-value heads, H head size


@dataclass(frozen=True, slots=True)
class KvPool:
    """Pages 0 to `pages`; page 0 takes what padding writes."""

    kv_L2PSKH: Tensor
    page_size: int

    @classmethod
    def zeros(
        cls,
        description: Description,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> KvPool:
        """The system gives the memory page by page, as it is first written.

        Never garbage: what a mask leaves out is multiplied by zero, and NaN times zero is NaN.
        """
        shape = (
            description.layers,
            2,
            pages + 1,
            page_size,
            description.kv_heads,
            description.head_size,
        )
        if torch.device(device).type == "cpu":
            return cls(_untouched(shape, dtype), page_size)
        return cls(torch.zeros(shape, dtype=dtype, device=device), page_size)

    def wipe(self, pages: Sequence[int]) -> None:
        """After a sequence with NaN: its pages must not spoil those who get them next."""
        self.kv_L2PSKH[:, :, list(pages)] = 0

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """k_PSKH and v_PSKH."""
        k, v = self.kv_L2PSKH[index]
        return k, v


def _untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take no memory until they are written; torch.zeros writes them at once."""
    raw = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
