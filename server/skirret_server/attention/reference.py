"""Attention in plain torch: the oracle of the fast ones, and what runs where there is no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
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
from skirret_server.model.description import Description

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


Scored = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # (q, k, v, mask) -> o


@dataclass(frozen=True, slots=True)
class _Plan:
    """A step, for the layers that see equally far."""

    decodes: list[_Decodes]
    prompts: list[_Prompt]


class Reference:
    def __init__(self, pool: KvPool, description: Description | None = None) -> None:
        """Without a description it attends as Llama does."""
        self._page_size = pool.page_size
        self._device = pool.kv_L2PSKH.device
        self._layers = [
            (_Cache(k.flatten(1), k.flatten(0, 1)), _Cache(v.flatten(1), v.flatten(0, 1)))
            for k, v in map(pool.layer, range(len(pool.kv_L2PSKH)))
        ]
        self._windows = (description and description.windows) or (0,) * len(self._layers)
        scale = description.scale if description else pool.kv_L2PSKH.shape[-1] ** -0.5
        cap = description.score_cap if description else 0.0
        self._score: Scored = partial(_capped, cap, scale) if cap else partial(_plain, scale)

    def plan(self, layout: Layout) -> Attend:
        size = self._page_size
        plans = {
            window: _Plan(
                list(_decodes(layout, size, window, self._device)),
                list(_prompts(layout, size, window, self._device)),
            )
            for window in set(self._windows)
        }
        return partial(self._attend, torch.from_numpy(layout.slots).to(self._device), plans)

    def _attend(
        self,
        slots_T: Tensor,
        plans: dict[int, _Plan],
        layer: int,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
    ) -> Tensor:
        keys, values = self._layers[layer]
        plan = plans[self._windows[layer]]
        keys.slots.index_copy_(0, slots_T, k_TKH)
        values.slots.index_copy_(0, slots_T, v_TKH)
        out_TNH = q_TNH.new_empty(q_TNH.shape)
        for group in plan.decodes:
            out_TNH[group.tokens_B] = _decode(self._score, group, q_TNH, keys, values)
        for prompt in plan.prompts:
            span = slice(prompt.start, prompt.end)
            if prompt.pages is None:
                k, v = k_TKH[span], v_TKH[span]
            else:
                k, v = keys.gather(prompt.pages), values.gather(prompt.pages)
            out_TNH[span] = _prefill(self._score, q_TNH[span], k, v, prompt.mask_CS)
        return out_TNH


def _plain(scale: float, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )


def _capped(
    cap: float, scale: float, q_BNCH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, mask: Tensor | None
) -> Tensor:
    group = q_BNCH.shape[1] // k_BKSH.shape[1]
    k, v = (each.repeat_interleave(group, 1).float() for each in (k_BKSH, v_BKSH))
    scores = torch.tanh(q_BNCH.float() @ k.mT * (scale / cap)) * cap
    if mask is None:
        size = q_BNCH.shape[2]
        mask = torch.full((size, size), -torch.inf, device=scores.device).triu(1)
    return ((scores + mask).softmax(-1) @ v).to(q_BNCH.dtype)


def _decode(score: Scored, group: _Decodes, q_TNH: Tensor, keys: _Cache, values: _Cache) -> Tensor:
    """The G queries of a key-value head attend as if they were G tokens: keys are read once."""
    rows, seen = len(group.tokens_B), group.mask_B11S.shape[-1]
    kv_heads, size = keys.slots.shape[1:]
    k_BKSH, v_BKSH = (
        each.gather(group.pages).view(rows, seen, kv_heads, size).transpose(1, 2)
        for each in (keys, values)
    )
    q_BKGH = q_TNH[group.tokens_B].view(rows, kv_heads, -1, size)
    out_BKGH = score(q_BKGH, k_BKSH, v_BKSH, group.mask_B11S)
    return out_BKGH.reshape(rows, -1, size)


def _prefill(
    score: Scored, q_CNH: Tensor, k_SKH: Tensor, v_SKH: Tensor, mask_CS: Tensor | None
) -> Tensor:
    out_1NCH = score(
        q_CNH.transpose(0, 1).unsqueeze(0),
        k_SKH.transpose(0, 1).unsqueeze(0),
        v_SKH.transpose(0, 1).unsqueeze(0),
        mask_CS,
    )
    return out_1NCH[0].transpose(0, 1)


def _decodes(layout: Layout, size: int, window: int, device: torch.device) -> Iterator[_Decodes]:
    """Groups of rows whose lengths differ by less than half, so that little is padding."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(layout.counts == 1):
        groups[_bucket(-(-int(layout.lengths[row]) // size))].append(int(row))
    for rows in groups.values():
        lengths = layout.lengths[rows]
        width = -(-int(lengths.max()) // size)
        pages = layout.pages[rows, :width].reshape(-1)
        yield _Decodes(
            tokens_B=torch.from_numpy(layout.starts[rows].astype(np.int64)).to(device),
            pages=torch.from_numpy(pages.astype(np.int64)).to(device),
            mask_B11S=_mask(lengths - 1, width * size, window).to(device)[:, None, None, :],
        )


def _bucket(pages: int) -> int:
    """Numbers of pages with the same two leading binary digits."""
    shift = max(pages.bit_length() - 2, 0)
    return (pages >> shift) + 4 * shift


def _prompts(layout: Layout, size: int, window: int, device: torch.device) -> Iterator[_Prompt]:
    for row in np.flatnonzero(layout.counts != 1):
        start, end = int(layout.starts[row]), int(layout.starts[row + 1])
        length = int(layout.lengths[row])
        positions = np.arange(length - (end - start), length)
        if length == end - start:
            is_all = not window or length <= window
            mask = None if is_all else _mask(positions, length, window).to(device)
            yield _Prompt(start, end, None, mask)
            continue
        pages = layout.pages[row, : -(-length // size)].astype(np.int64)
        mask = _mask(positions, len(pages) * size, window).to(device)
        yield _Prompt(start, end, torch.from_numpy(pages).to(device), mask)


def _mask(positions: npt.NDArray[np.integer], count: int, window: int) -> Tensor:
    """To be added to scores; made here once, where SDPA would make it in every layer.

    Tokens at `positions` see those before them and themselves, the last `window` of `count`.
    """
    distance = positions[:, None] - np.arange(count)[None, :]
    seen = distance >= 0 if not window else (distance >= 0) & (distance < window)
    return torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))
