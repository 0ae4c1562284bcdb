"""The sampler: raw logits in, one token a row out."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from collections.abc import Set

import torch
from torch import Tensor

from skirret_server.core import Logprob, Sampling, TokenId
from skirret_server.sampling.adjust import adjust, is_adjusted
from skirret_server.sampling.choose import choose
from skirret_server.sampling.likeliest import likeliest
from skirret_server.scheduler.sequence import Outcome, Sequence

# R rows, V vocabulary


def sample(logits_RV: Tensor, sequences: Rows[Sequence], end_tokens: Set[TokenId]) -> list[Outcome]:
    """Draws the next token of each sequence. `logits_RV` is float32 and is overwritten.

    A row that has no finite maximum fails, and no other with it.
    """
    peaks, tokens = _peaks(logits_RV)
    is_sound = peaks.isfinite().tolist()
    wanted = [row for row, each in enumerate(sequences) if _sampling(each).logprobs is not None]
    raw = logits_RV[wanted].log_softmax(-1) if wanted else None
    adjusted = [row for row, each in enumerate(sequences) if is_adjusted(each)]
    if adjusted:
        adjust(logits_RV, sequences, adjusted, end_tokens)
        peaks, tokens = _peaks(logits_RV)  # of all: picking rows out takes longer
    has_choice = peaks.isfinite().tolist()
    random = [
        row
        for row, each in enumerate(sequences)
        if _sampling(each).temperature > 0 and has_choice[row]
    ]
    if random:
        tokens[random] = choose(logits_RV, sequences, random)
    drawn = tokens.tolist()
    logprobs: dict[int, Logprob] = {}
    if raw is not None:
        for at, row in enumerate(wanted):
            top = _sampling(sequences[row]).logprobs or 0
            logprobs[row] = score(raw[at : at + 1], [drawn[row]], top)[0]
    return [
        outcome_of(token, logprobs.get(row), is_sound[row], has_choice[row])
        for row, token in enumerate(drawn)
    ]


def outcome_of(
    token: TokenId, logprob: Logprob | None, is_sound: bool, has_choice: bool
) -> Outcome:
    """A row fails whose logits were no numbers, or of which nothing was left to choose from."""
    if has_choice:
        return Outcome(token=token, logprob=logprob)
    if is_sound:
        return Outcome(error="the constraints on the answer allow no token")
    return Outcome(error="the model computed values that are no numbers")


def score(logprobs_RV: Tensor, tokens: Rows[TokenId], top: int) -> list[Logprob]:
    """The log-probability of one token a row, and the `top` likeliest beside it."""
    index = torch.tensor(tokens, device=logprobs_RV.device)
    chosen = logprobs_RV.gather(-1, index.unsqueeze(-1)).squeeze(-1).tolist()
    if not top:
        return [Logprob(token, value) for token, value in zip(tokens, chosen, strict=True)]
    values, ids = (each.tolist() for each in likeliest(logprobs_RV, top))
    return [
        Logprob(token, value, tuple(zip(ids[row], values[row], strict=True)))
        for row, (token, value) in enumerate(zip(tokens, chosen, strict=True))
    ]


def _peaks(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = likeliest(logits_RV, 1)
    return values[:, 0], ids[:, 0]


def _sampling(sequence: Sequence) -> Sampling:
    return sequence.request.sampling
