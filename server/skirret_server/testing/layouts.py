"""Steps in the making for tests of attention: random sequences in pages dealt out at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skirret_server.attention.interface import Layout
from skirret_server.engine.pool import KvPool

# T tokens of the step, N query heads, K key-value heads, H head size, S tokens of a sequence


@dataclass(frozen=True, slots=True)
class RandomStep:
    layout: Layout
    q_TNH: Tensor
    k_TKH: Tensor
    v_TKH: Tensor
    whole: list[tuple[Tensor, Tensor]]  # k_SKH and v_SKH of each sequence
    _kv: Tensor

    def pool(self, page_size: int) -> KvPool:
        """One of its own, in which what came before the step has been computed."""
        return KvPool(self._kv.clone(), page_size)


def random_step(
    rows: Sequence[tuple[int, int]],
    page_size: int,
    *,
    query_heads: int = 6,
    kv_heads: int = 2,
    size: int = 16,
    shared: int = 0,
    unused: float = 0.0,
    seed: int = 0,
) -> RandomStep:
    """Rows are (tokens computed before, new tokens); all begin with the same `shared` pages.

    Slots that hold nothing are filled with `unused`.
    """
    random = torch.Generator().manual_seed(seed)
    lengths = np.array([before + new for before, new in rows], np.int32)
    used = -(-lengths // page_size)
    total = int((used - shared).sum()) + shared
    deck = torch.randperm(total, generator=random).numpy() + 1
    common, deck = deck[:shared], deck[shared:]
    pages = np.zeros((len(rows), int(used.max())), np.int32)
    for index, count in enumerate(used):
        pages[index, :shared] = common
        pages[index, shared:count], deck = deck[: count - shared], deck[count - shared :]
    kv = torch.full((1, 2, total + 1, page_size, kv_heads, size), unused)
    whole: list[tuple[Tensor, Tensor]] = []
    slots, starts = [], [0]
    for index, (before, new) in enumerate(rows):
        k, v = torch.randn(2, before + new, kv_heads, size, generator=random)
        if index and shared:
            for part, first in zip((k, v), whole[0], strict=True):
                part[: shared * page_size] = first[: shared * page_size]
        where = pages[index].repeat(page_size).astype(np.int64) * page_size
        where += np.tile(np.arange(page_size), len(pages[index]))
        where = where[: before + new]
        kv[0, 0].flatten(0, 1)[where[:before]] = k[:before]
        kv[0, 1].flatten(0, 1)[where[:before]] = v[:before]
        whole.append((k, v))
        slots.append(where[before:])
        starts.append(starts[-1] + new)
    k_TKH, v_TKH = (
        torch.cat([each[part][before:] for each, (before, _) in zip(whole, rows, strict=True)])
        for part in (0, 1)
    )
    layout = Layout(np.array(starts, np.int32), lengths, pages, np.concatenate(slots))
    q_TNH = torch.randn(starts[-1], query_heads, size, generator=random)
    return RandomStep(layout, q_TNH, k_TKH, v_TKH, whole, kv)
