"""The reference attention against one that looks at a single token at a time."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skirret_server.attention.reference import Reference
from skirret_server.model.description import Description
from skirret_server.testing.layouts import random_step

GROUP, SIZE = 3, 16
PLAIN = Description(8, 8, 8, 1, 6, 2, SIZE, 99, 1e-6, (None,), tied=True)

row = st.tuples(st.integers(0, 40), st.integers(1, 9) | st.just(1))


def naive(
    q_NH: torch.Tensor, k_SKH: torch.Tensor, v_SKH: torch.Tensor, description: Description
) -> torch.Tensor:
    """What one token sees of the S up to itself."""
    window, cap = description.window(0), description.score_cap
    k_SNH, v_SNH = (each[-window:].repeat_interleave(GROUP, 1) for each in (k_SKH, v_SKH))
    scores_NS = torch.einsum("nh,snh->ns", q_NH, k_SNH) * description.scale
    if cap:
        scores_NS = (scores_NS / cap).tanh() * cap
    return torch.einsum("ns,snh->nh", scores_NS.softmax(-1), v_SNH)


@given(
    rows=st.lists(row, min_size=1, max_size=6),
    page_size=st.sampled_from([1, 4, 16]),
    window=st.sampled_from([0, 1, 7]),
    cap=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_every_token_sees_its_sequence_up_to_itself(
    rows: list[tuple[int, int]], page_size: int, window: int, cap: float, seed: int
) -> None:
    description = replace(PLAIN, windows=(window,), score_cap=cap, score_scale=cap and 0.3)
    step = random_step(rows, page_size, seed=seed)
    attend = Reference(step.pool(page_size), description).plan(step.layout)
    out = attend(0, step.q_TNH, step.k_TKH, step.v_TKH)
    for index, (before, new) in enumerate(rows):
        k, v = step.whole[index]
        for at in range(new):
            token, seen = step.layout.starts[index] + at, before + at + 1
            expected = naive(step.q_TNH[token], k[:seen], v[:seen], description)
            assert (out[token] - expected).abs().max() < 1e-5
