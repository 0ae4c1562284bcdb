"""The reference attention against one that looks at a single token at a time."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skirret_server.attention.interface import Layout
from skirret_server.attention.reference import Reference
from skirret_server.engine.pool import KvPool

KV_HEADS, GROUP, SIZE = 2, 3, 8

row = st.tuples(st.integers(0, 40), st.integers(1, 9) | st.just(1))


def naive(q_NH: torch.Tensor, k_SKH: torch.Tensor, v_SKH: torch.Tensor) -> torch.Tensor:
    """What one token sees of the S up to itself."""
    k_SNH, v_SNH = (each.repeat_interleave(GROUP, 1) for each in (k_SKH, v_SKH))
    weights_NS = (torch.einsum("nh,snh->ns", q_NH, k_SNH) * SIZE**-0.5).softmax(-1)
    return torch.einsum("ns,snh->nh", weights_NS, v_SNH)


@given(
    rows=st.lists(row, min_size=1, max_size=6),
    page_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_every_token_sees_its_sequence_up_to_itself(
    rows: list[tuple[int, int]], page_size: int, seed: int
) -> None:
    """Rows are (tokens computed before, new tokens), in pages dealt out at random."""
    random = torch.Generator().manual_seed(seed)
    lengths = np.array([before + new for before, new in rows], np.int32)
    used = -(-lengths // page_size)
    total = int(used.sum())
    deck = torch.randperm(total, generator=random).numpy() + 1
    pages = np.zeros((len(rows), int(used.max())), np.int32)
    for index, count in enumerate(used):
        pages[index, :count], deck = deck[:count], deck[count:]
    kv = torch.zeros(1, 2, total + 1, page_size, KV_HEADS, SIZE)
    pool = KvPool(kv, page_size)
    truth, slots, starts = [], [], [0]
    for index, (before, new) in enumerate(rows):
        k, v = torch.randn(2, before + new, KV_HEADS, SIZE, generator=random)
        where = pages[index].repeat(page_size).astype(np.int64) * page_size
        where += np.tile(np.arange(page_size), len(pages[index]))
        where = where[: before + new]
        kv[0, 0].flatten(0, 1)[where[:before]] = k[:before]
        kv[0, 1].flatten(0, 1)[where[:before]] = v[:before]
        truth.append((k, v))
        slots.append(where[before:])
        starts.append(starts[-1] + new)
    q = torch.randn(starts[-1], KV_HEADS * GROUP, SIZE, generator=random)
    new_k, new_v = (
        torch.cat([each[part][before:] for each, (before, _) in zip(truth, rows, strict=True)])
        for part in (0, 1)
    )
    layout = Layout(np.array(starts, np.int32), lengths, pages, np.concatenate(slots))
    out = Reference(pool).plan(layout)(0, q, new_k, new_v)
    for index, (before, new) in enumerate(rows):
        k, v = truth[index]
        for at in range(new):
            seen = before + at + 1
            expected = naive(q[starts[index] + at], k[:seen], v[:seen])
            assert (out[starts[index] + at] - expected).abs().max() < 1e-5
