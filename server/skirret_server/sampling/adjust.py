"""What changes logits before anything is chosen: penalties, biases, minimum length, grammar."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from collections.abc import Set

import numpy as np
import torch
from torch import Tensor

from skirret_server.core import Sampling, TokenId, TokenSet
from skirret_server.scheduler.sequence import Sequence

# R rows, V vocabulary, E entries that change


def is_adjusted(sequence: Sequence) -> bool:
    sampling = sequence.request.sampling
    return (
        sequence.grammar is not None
        or bool(sampling.logit_bias)
        or sequence.generated < sampling.min_tokens
        or (sequence.generated > 0 and _is_penalised(sampling))
    )


def adjust(
    logits_RV: Tensor, sequences: Rows[Sequence], rows: Rows[int], end_tokens: Set[TokenId]
) -> None:
    """Changes these rows in place. The grammar comes last: it wins over every bias."""
    for row in rows:
        sequence, logits_V = sequences[row], logits_RV[row]
        sampling = sequence.request.sampling
        if sequence.generated and _is_penalised(sampling):
            _penalise(logits_V, sequence)
        if sampling.logit_bias:
            tokens = torch.tensor(list(sampling.logit_bias), device=logits_V.device)
            biases = torch.tensor(list(sampling.logit_bias.values()), device=logits_V.device)
            logits_V.index_add_(0, tokens, biases)
        if sequence.generated < sampling.min_tokens:
            logits_V[sorted(end_tokens | sampling.stop_token_ids)] = -torch.inf
        if sequence.grammar is not None:
            _restrict(logits_V, sequence.grammar.allowed())


def _restrict(logits_V: Tensor, allowed: TokenSet) -> None:
    """By ids: masked_fill_ over a vocabulary takes ten times longer."""
    if logits_V.device.type == "cpu":  # numpy has less to do before it begins
        values, ids = logits_V.numpy(), allowed.ids
        kept = values[ids]
        if not allowed.are_excluded:
            values.fill(-np.inf)
        values[ids] = -np.inf if allowed.are_excluded else kept
        return
    index = torch.from_numpy(allowed.ids).to(logits_V.device)
    if allowed.are_excluded:
        logits_V[index] = -torch.inf
    else:
        kept_E = logits_V[index]
        logits_V.fill_(-torch.inf)
        logits_V[index] = kept_E


def _is_penalised(sampling: Sampling) -> bool:
    return (
        sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
        or sampling.repetition_penalty != 1
    )


def _penalise(logits_V: Tensor, sequence: Sequence) -> None:
    sampling = sequence.request.sampling
    generated = np.frombuffer(sequence.tokens, np.int32)[sequence.prompt_length :]
    tokens, counts = np.unique(generated, return_counts=True)
    index = torch.from_numpy(tokens.astype(np.int64)).to(logits_V.device)
    times = torch.from_numpy(counts.astype(np.float32)).to(logits_V.device)
    values_E = logits_V[index]
    if sampling.repetition_penalty != 1:
        factor = sampling.repetition_penalty
        values_E = torch.where(values_E > 0, values_E / factor, values_E * factor)
    values_E -= sampling.frequency_penalty * times + sampling.presence_penalty
    logits_V[index] = values_E
