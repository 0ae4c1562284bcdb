"""The sampler of a GPU: launched without waiting, read when the outcomes are wanted.

Rows with a seed are drawn as on the CPU, by their own die, so that nothing else in the batch
changes them; the others by FlashInfer, whose random numbers depend on the place in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skirret_server.attention.library import Library
from skirret_server.core import GenerateRequest, Logprob, Sampling, TokenId
from skirret_server.engine.device import Device, Fetched
from skirret_server.sampling.adjust import adjust, is_adjusted
from skirret_server.sampling.choose import invert
from skirret_server.sampling.sampler import outcome_of
from skirret_server.sampling.uniform import uniform
from skirret_server.scheduler.sequence import Outcome, Sequence

# R rows, V vocabulary, W rows whose log-probabilities are wanted, K likeliest


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token a row, on the device; `outcomes` waits for them."""

    tokens_R: Tensor
    outcomes: Callable[[], list[Outcome]]


@dataclass(frozen=True, slots=True)
class _Scores:
    rows: list[int]
    chosen_W: Fetched
    top_W2K: Fetched | None  # values, then ids as numbers of the same kind

    def logprobs(self, tokens: list[TokenId], tops: list[int]) -> dict[int, Logprob]:
        chosen = self.chosen_W.get().tolist()
        top = self.top_W2K.get().tolist() if self.top_W2K else [([], [])] * len(self.rows)
        return {
            row: Logprob(
                tokens[row],
                chosen[at],
                tuple(zip(map(int, top[at][1][:count]), top[at][0][:count], strict=True)),
            )
            for at, (row, count) in enumerate(zip(self.rows, tops, strict=True))
        }


class Sampler:
    """Draws on one device. `seed` is that of all rows without one."""

    def __init__(self, device: Device, library: Library, seed: int | None = None) -> None:
        self._device = device
        self._library = library
        self._random = torch.Generator(device.place)
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(seed)

    def warm(self, vocabulary: int) -> None:
        """Draws in every way, since libraries compile at first use."""
        ways: tuple[dict[str, Any], ...] = (
            {},
            {"top_p": 0.5},
            {"top_k": 2, "top_p": 0.5, "min_p": 0.1},
        )
        for options in ways:
            for seed in (None, 1):
                request = GenerateRequest("", [0], Sampling(1, seed=seed, **options))
                logits_RV = torch.zeros(1, vocabulary, device=self._device.place)
                self.draw(logits_RV, [Sequence(request, 0, 0.0, 0)], frozenset()).outcomes()

    def draw(self, logits_RV: Tensor, sequences: Rows[Sequence], end_tokens: Set[TokenId]) -> Drawn:
        """The next token of each sequence. `logits_RV` is float32 and is overwritten."""
        raw_peaks_R, tokens_R = logits_RV.max(-1)
        wanted = [row for row, each in enumerate(sequences) if _of(each).logprobs is not None]
        raw_WV = self._rows(logits_RV, wanted).log_softmax(-1) if wanted else None
        adjusted = [row for row, each in enumerate(sequences) if is_adjusted(each)]
        peaks_R = raw_peaks_R
        if adjusted:
            adjust(logits_RV, sequences, adjusted, end_tokens)
            peaks_R, tokens_R = logits_RV.max(-1)
        random = [row for row, each in enumerate(sequences) if _of(each).temperature > 0]
        if random:
            rows_R = self._index(random)
            # Where there is no choice any will do: it is not looked at, but must not be NaN.
            is_sound = peaks_R.index_select(0, rows_R).isfinite()
            logits = self._rows(logits_RV, random).where(is_sound.unsqueeze(1), 0.0)
            chosen = self._choose(logits, [sequences[row] for row in random])
            tokens_R = tokens_R.index_copy(0, rows_R, chosen)
        scores = None if raw_WV is None else self._scores(raw_WV, tokens_R, wanted, sequences)
        sound = torch.stack([raw_peaks_R, peaks_R]).isfinite()
        facts = self._device.fetch(torch.cat([tokens_R.unsqueeze(0), sound.long()]))
        tops = [_of(sequences[row]).logprobs or 0 for row in wanted]

        def outcomes() -> list[Outcome]:
            drawn, is_sound, has_choice = facts.get().tolist()
            logprobs = scores.logprobs(drawn, tops) if scores else {}
            return [
                outcome_of(token, logprobs.get(row), bool(is_sound[row]), bool(has_choice[row]))
                for row, token in enumerate(drawn)
            ]

        return Drawn(tokens_R, outcomes)

    def _choose(self, logits_RV: Tensor, sequences: Rows[Sequence]) -> Tensor:
        samplings = [_of(each) for each in sequences]
        seeded = [at for at, each in enumerate(samplings) if each.seed is not None]
        free = [at for at, each in enumerate(samplings) if each.seed is None]
        heat = self._numbers([each.temperature for each in samplings]).unsqueeze(1)
        # Divided before, the peak of a very cold row would be infinite.
        logits_RV = (logits_RV - logits_RV.amax(-1, keepdim=True)) / heat
        tokens_R = torch.empty(len(samplings), dtype=torch.int64, device=logits_RV.device)
        if free:
            drawn = self._draw_free(self._rows(logits_RV, free), [samplings[at] for at in free])
            tokens_R.index_copy_(0, self._index(free), drawn.long())
        if seeded:
            drawn = self._draw_seeded(
                self._rows(logits_RV, seeded), [sequences[at] for at in seeded]
            )
            tokens_R.index_copy_(0, self._index(seeded), drawn)
        return tokens_R

    def _draw_free(self, logits_RV: Tensor, samplings: Rows[Sampling]) -> Tensor:
        """In the order of temperature, top-k, top-p, min-p: so far apart they are all exact."""
        library, random = self._library, self._random
        probabilities = self._after_top_k(logits_RV, samplings)
        top_p = None
        if any(each.top_p < 1 for each in samplings):
            top_p = self._numbers([each.top_p for each in samplings])
        drawn: Tensor
        if any(each.min_p for each in samplings):
            if top_p is not None:
                probabilities = library.top_p_renorm_probs(probabilities, top_p)
            min_p = self._numbers([each.min_p for each in samplings])
            drawn = library.min_p_sampling_from_probs(probabilities, min_p, generator=random)
        elif top_p is not None:
            drawn = library.top_p_sampling_from_probs(probabilities, top_p, generator=random)
        else:
            drawn = library.sampling_from_probs(probabilities, generator=random)
        return drawn

    def _draw_seeded(self, logits_RV: Tensor, sequences: Rows[Sequence]) -> Tensor:
        samplings = [_of(each) for each in sequences]
        probabilities = self._after_top_k(logits_RV, samplings)
        if any(each.top_p < 1 for each in samplings):
            top_p = self._numbers([each.top_p for each in samplings])
            probabilities = self._library.top_p_renorm_probs(probabilities, top_p)
        if any(each.min_p for each in samplings):
            min_p = self._numbers([each.min_p for each in samplings]).unsqueeze(1)
            floor = min_p * probabilities.amax(-1, keepdim=True)
            probabilities = probabilities.where(probabilities >= floor, 0.0)
        dice = [uniform(each.seed, each.generated) for each in sequences]
        shares = self._device.put(np.array(dice, np.float64))
        return invert(probabilities, shares).clamp_(max=probabilities.shape[-1] - 1)

    def _after_top_k(self, logits_RV: Tensor, samplings: Rows[Sampling]) -> Tensor:
        vocabulary = logits_RV.shape[-1]
        if any(0 < each.top_k < vocabulary for each in samplings):
            ks = [each.top_k if 0 < each.top_k < vocabulary else vocabulary for each in samplings]
            top_k = self._device.put(np.array(ks, np.int32))
            logits_RV = self._library.top_k_mask_logits(logits_RV, top_k)
        return logits_RV.softmax(-1)

    def _scores(
        self, raw_WV: Tensor, tokens_R: Tensor, wanted: list[int], sequences: Rows[Sequence]
    ) -> _Scores:
        chosen = raw_WV.gather(1, tokens_R.index_select(0, self._index(wanted)).unsqueeze(1))
        most = max(_of(sequences[row]).logprobs or 0 for row in wanted)
        top = None
        if most:
            values, ids = raw_WV.topk(most, -1)
            top = self._device.fetch(torch.stack([values.double(), ids.double()], 1))
        return _Scores(wanted, self._device.fetch(chosen.squeeze(1)), top)

    def _rows(self, x_RV: Tensor, rows: list[int]) -> Tensor:
        return x_RV if len(rows) == len(x_RV) else x_RV.index_select(0, self._index(rows))

    def _index(self, rows: list[int]) -> Tensor:
        return self._device.put(np.array(rows, np.int64))

    def _numbers(self, values: list[float]) -> Tensor:
        return self._device.put(np.array(values, np.float32))


def _of(sequence: Sequence) -> Sampling:
    return sequence.request.sampling
