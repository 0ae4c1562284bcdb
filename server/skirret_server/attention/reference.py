"""Attention in plain torch: the oracle of the fast ones, and what runs where there is no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from skirret_server.attention.interface import Layout
from skirret_server.engine.pool import KvPool
from skirret_server.model.decoder import Attend

# T tokens of the step, B rows, N query heads, K key-value heads, G = N / K, H head size,
# S tokens of the longest sequence of a group, C new tokens of a row


@dataclass(frozen=True, slots=True)
class _Cache:
    """One layer's keys or values, seen as pages and as slots."""

    pages: Tensor  # page by page, all its numbers
    slots: Tensor  # token by token

    def gather(self, pages: Tensor) -> Tensor:
        """The tokens of these pages, end to end. index_select copies whole pages; [] does not."""
        return self.pages.index_select(0, pages).view(-1, *self.slots.shape[1:])


@dataclass(frozen=True, slots=True)
class _Decodes:
    """Rows of one token each, about equally long, attended together."""

    tokens_B: Tensor
    pages: Tensor  # all rows' pages, end to end
    mask_B11S: Tensor


@dataclass(frozen=True, slots=True)
class _Prompt:
    """New tokens of one sequence."""

    start: int
    end: int
    pages: Tensor | None  # None: nothing came before, so keys and values are at hand
    mask_CS: Tensor | None


class Reference:
    def __init__(self, pool: KvPool) -> None:
        self._page_size = pool.page_size
        self._layers = [
            (_Cache(k.flatten(1), k.flatten(0, 1)), _Cache(v.flatten(1), v.flatten(0, 1)))
            for k, v in map(pool.layer, range(len(pool.kv_L2PSKH)))
        ]

    def plan(self, layout: Layout) -> Attend:
        size = self._page_size
        return partial(
            self._attend,
            torch.from_numpy(layout.slots),
            list(_decodes(layout, size)),
            list(_prompts(layout, size)),
        )

    def _attend(
        self,
        slots_T: Tensor,
        decodes: list[_Decodes],
        prompts: list[_Prompt],
        layer: int,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
    ) -> Tensor:
        keys, values = self._layers[layer]
        keys.slots.index_copy_(0, slots_T, k_TKH)
        values.slots.index_copy_(0, slots_T, v_TKH)
        out_TNH = q_TNH.new_empty(q_TNH.shape)
        for group in decodes:
            out_TNH[group.tokens_B] = _decode(group, q_TNH, keys, values)
        for prompt in prompts:
            span = slice(prompt.start, prompt.end)
            if prompt.pages is None:
                k, v = k_TKH[span], v_TKH[span]
            else:
                k, v = keys.gather(prompt.pages), values.gather(prompt.pages)
            out_TNH[span] = _prefill(q_TNH[span], k, v, prompt.mask_CS)
        return out_TNH


def _decode(group: _Decodes, q_TNH: Tensor, keys: _Cache, values: _Cache) -> Tensor:
    """The G queries of a key-value head attend as if they were G tokens: keys are read once."""
    rows, seen = len(group.tokens_B), group.mask_B11S.shape[-1]
    kv_heads, size = keys.slots.shape[1:]
    k_BKSH, v_BKSH = (
        each.gather(group.pages).view(rows, seen, kv_heads, size).transpose(1, 2)
        for each in (keys, values)
    )
    q_BKGH = q_TNH[group.tokens_B].view(rows, kv_heads, -1, size)
    out_BKGH = F.scaled_dot_product_attention(q_BKGH, k_BKSH, v_BKSH, attn_mask=group.mask_B11S)
    return out_BKGH.reshape(rows, -1, size)


def _prefill(q_CNH: Tensor, k_SKH: Tensor, v_SKH: Tensor, mask_CS: Tensor | None) -> Tensor:
    out_1NCH = F.scaled_dot_product_attention(
        q_CNH.transpose(0, 1).unsqueeze(0),
        k_SKH.transpose(0, 1).unsqueeze(0),
        v_SKH.transpose(0, 1).unsqueeze(0),
        attn_mask=mask_CS,
        is_causal=mask_CS is None,
        enable_gqa=True,
    )
    return out_1NCH[0].transpose(0, 1)


def _decodes(layout: Layout, size: int) -> Iterator[_Decodes]:
    """Groups of rows whose lengths differ by less than half, so that little is padding."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(layout.counts == 1):
        groups[_bucket(-(-int(layout.lengths[row]) // size))].append(int(row))
    for rows in groups.values():
        lengths = layout.lengths[rows]
        width = -(-int(lengths.max()) // size)
        seen = np.arange(width * size)[None, :] < lengths[:, None]
        yield _Decodes(
            tokens_B=torch.from_numpy(layout.starts[rows].astype(np.int64)),
            pages=torch.from_numpy(layout.pages[rows, :width].reshape(-1).astype(np.int64)),
            mask_B11S=_mask(seen)[:, None, None, :],
        )


def _bucket(pages: int) -> int:
    """Numbers of pages with the same two leading binary digits."""
    shift = max(pages.bit_length() - 2, 0)
    return (pages >> shift) + 4 * shift


def _prompts(layout: Layout, size: int) -> Iterator[_Prompt]:
    for row in np.flatnonzero(layout.counts != 1):
        start, end = int(layout.starts[row]), int(layout.starts[row + 1])
        length = int(layout.lengths[row])
        if length == end - start:
            yield _Prompt(start, end, None, None)
            continue
        pages = layout.pages[row, : -(-length // size)].astype(np.int64)
        positions = np.arange(length - (end - start), length)
        seen = np.arange(len(pages) * size)[None, :] <= positions[:, None]
        yield _Prompt(start, end, torch.from_numpy(pages), _mask(seen))


def _mask(seen: npt.NDArray[np.bool_]) -> Tensor:
    """To be added to the scores; made here once, where SDPA would make it in every layer."""
    return torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))
