"""Draws at random: temperature, then top-k, top-p and min-p, without sorting the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from skirret_server.core import Sampling
from skirret_server.sampling.likeliest import likeliest
from skirret_server.sampling.uniform import uniform
from skirret_server.scheduler.sequence import Sequence

# R rows, V vocabulary, S survivors, likeliest first

# Top-p rarely needs more than this many of the likeliest; where it does, all are sorted.
_SURVIVORS = 256


def choose(logits_RV: Tensor, sequences: Rows[Sequence], rows: Rows[int]) -> Tensor:
    """A token for each of `rows`."""
    samplings = [sequences[row].request.sampling for row in rows]
    dice = [uniform(sequences[row].seed, sequences[row].generated) for row in rows]
    device = logits_RV.device
    heat = torch.tensor([each.temperature for each in samplings], device=device)
    scaled = logits_RV[list(rows)] / heat.unsqueeze(-1)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=device)
    narrow = [at for at, each in enumerate(samplings) if _is_narrow(each, scaled.shape[-1])]
    wide = [at for at in range(len(rows)) if at not in set(narrow)]
    if wide:
        tokens[wide] = _draw_wide(
            scaled[wide], [samplings[at] for at in wide], [dice[at] for at in wide]
        )
    if narrow:
        tokens[narrow] = _draw_narrow(
            scaled[narrow], [samplings[at] for at in narrow], [dice[at] for at in narrow]
        )
    return tokens


def _is_narrow(sampling: Sampling, vocabulary: int) -> bool:
    return sampling.top_p < 1 or 0 < sampling.top_k < vocabulary


def _draw_wide(logits_RV: Tensor, samplings: Rows[Sampling], dice: Rows[float]) -> Tensor:
    """From the whole vocabulary; min-p needs only its likeliest token."""
    if any(each.min_p for each in samplings):
        floors = [math.log(each.min_p) if each.min_p else -math.inf for each in samplings]
        floor = torch.tensor(floors, device=logits_RV.device).unsqueeze(-1)
        peak = logits_RV.amax(-1, keepdim=True)
        logits_RV = logits_RV.masked_fill(logits_RV < peak + floor, -torch.inf)
    return invert(logits_RV.softmax(-1), _shares(dice, logits_RV))


def _draw_narrow(
    logits_RV: Tensor,
    samplings: Rows[Sampling],
    dice: Rows[float],
    survivors: int = _SURVIVORS,
) -> Tensor:
    """From the likeliest `survivors`, or from all where those do not hold `top_p` of the mass."""
    vocabulary, device = logits_RV.shape[-1], logits_RV.device
    size = min(max(survivors, *(each.top_k for each in samplings)), vocabulary)
    values_RS, ids_RS = likeliest(logits_RV, size)
    has_k = [0 < each.top_k < vocabulary for each in samplings]
    rank_S = torch.arange(size, device=device)
    last = [each.top_k if k else size for each, k in zip(samplings, has_k, strict=True)]
    values_RS = values_RS.masked_fill(
        rank_S >= torch.tensor(last, device=device).unsqueeze(-1), -torch.inf
    )
    of_all, of_those = logits_RV.logsumexp(-1), values_RS.logsumexp(-1)
    total = torch.where(torch.tensor(has_k, device=device), of_those, of_all)
    probabilities_RS = (values_RS - total.unsqueeze(-1)).exp()
    before_RS = probabilities_RS.cumsum(-1) - probabilities_RS
    top_p = torch.tensor([each.top_p for each in samplings], device=device).unsqueeze(-1)
    min_p = torch.tensor([each.min_p for each in samplings], device=device).unsqueeze(-1)
    is_out = (before_RS >= top_p) | (probabilities_RS < min_p * probabilities_RS[:, :1])
    is_out[:, 0] = False
    drawn = invert(probabilities_RS.masked_fill(is_out, 0.0), _shares(dice, logits_RV))
    tokens = ids_RS.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    mass = (before_RS[:, -1] + probabilities_RS[:, -1]).tolist()
    short = [
        row
        for row, each in enumerate(samplings)
        if not has_k[row] and size < vocabulary and mass[row] < each.top_p
    ]
    if short:
        tokens[short] = _draw_narrow(
            logits_RV[short],
            [samplings[row] for row in short],
            [dice[row] for row in short],
            vocabulary,
        )
    return tokens


def invert(weights_RS: Tensor, shares_R: Tensor) -> Tensor:
    """The index where each row's running sum passes its die's share of the total."""
    sums_RS = weights_RS.cumsum(-1, dtype=torch.float64)
    targets = shares_R.unsqueeze(-1) * sums_RS[:, -1:]
    # The first sum *above* the target: a weight of zero is never chosen.
    return torch.searchsorted(sums_RS, targets, right=True).squeeze(-1)


def _shares(dice: Rows[float], like: Tensor) -> Tensor:
    return torch.tensor(dice, dtype=torch.float64, device=like.device)
