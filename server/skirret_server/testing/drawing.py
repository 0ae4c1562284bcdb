"""The plainest possible sampler, by which draws are judged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from skirret_server.core import Sampling, TokenId


def probabilities(logits: torch.Tensor, sampling: Sampling) -> np.ndarray:
    """Temperature, then top-k, top-p, min-p; each on what the one before left. `logits`: [V]."""
    p = (logits.double() / sampling.temperature).softmax(-1).numpy()
    order = np.argsort(-p, kind="stable")
    if 0 < sampling.top_k < len(p):
        p[order[sampling.top_k :]] = 0
        p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[1:][before[1:] >= sampling.top_p]] = 0
    p[p < sampling.min_p * p.max()] = 0
    kept: np.ndarray = p / p.sum()
    return kept


def chi_squared(tokens: Sequence[TokenId], expected: np.ndarray) -> tuple[float, float]:
    """Of tokens drawn, against how often each is `expected`; and the most that chance would do.

    Raises AssertionError for a token that can't be drawn at all.
    """
    seen = np.bincount(tokens, minlength=len(expected))
    assert not seen[expected == 0].any(), "a token was drawn that can't be"
    likely = expected >= 5
    chi2 = float(((seen - expected) ** 2 / np.maximum(expected, 1))[likely].sum())
    degrees = max(int(likely.sum()) - 1, 1)
    return chi2, degrees + 5 * math.sqrt(2 * degrees)
