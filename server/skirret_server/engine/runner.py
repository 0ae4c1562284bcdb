"""Runs one step: arrays for the model, the model, the sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from skirret_server.attention.interface import Attention, Layout
from skirret_server.core import Logprob, TokenId
from skirret_server.engine.pool import KvPool
from skirret_server.model.decoder import Decoder
from skirret_server.sampling.sampler import sample, score
from skirret_server.scheduler.sequence import Outcome, Row, Step
from skirret_server.scheduler.sequence import Sequence as Drawing

# The most logits in memory at once, in rows: those of a long prompt would be gigabytes.
_SCORED = 64


class ModelRunner:
    """A model, its attention and its KV pool, on one device."""

    def __init__(
        self,
        decoder: Decoder,
        attention: Attention,
        pool: KvPool,
        end_tokens: Set[TokenId],
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._pool = pool
        self._end_tokens = end_tokens

    @torch.inference_mode()
    def run(self, step: Step) -> list[Outcome]:
        """One outcome for each row."""
        layout, ids, positions = arrays(step.rows, self._pool.page_size)
        attend = self._attention.plan(layout)
        hidden = self._decoder.hidden(torch.from_numpy(ids), torch.from_numpy(positions), attend)
        outcomes = [Outcome()] * len(step.rows)
        sampled = [index for index, row in enumerate(step.rows) if row.samples]
        if sampled:
            # Where a guess was computed, the tokens after each part of it are drawn too.
            wanted = [
                int(layout.starts[index + 1]) - 1 - back
                for index in sampled
                for back in range(len(step.rows[index].guess), -1, -1)
            ]
            logits = self._decoder.logits(hidden[torch.tensor(wanted)])
            sequences = [each for index in sampled for each in _drawn_for(step.rows[index])]
            drawn = iter(sample(logits, sequences, self._end_tokens))
            for index in sampled:
                guess = step.rows[index].guess
                outcomes[index] = as_far_as_right(guess, list(islice(drawn, len(guess) + 1)))
        for index, row in enumerate(step.rows):
            if row.sequence.request.sampling.prompt_logprobs is not None:
                scored = tuple(self._scored(row, hidden[layout.starts[index] :]))
                outcomes[index] = with_prompt(outcomes[index], scored)
        return outcomes

    def wipe(self, pages: list[int]) -> None:
        self._pool.wipe(pages)

    def _scored(self, row: Row, hidden: Tensor) -> Iterator[Logprob]:
        """Log-probabilities of the prompt's tokens that follow the row's."""
        sequence = row.sequence
        top = sequence.request.sampling.prompt_logprobs or 0
        end = min(row.start + row.count, sequence.prompt_length - 1)
        for first in range(row.start, end, _SCORED):
            last = min(first + _SCORED, end)
            logits = self._decoder.logits(hidden[first - row.start : last - row.start])
            targets = sequence.tokens[first + 1 : last + 1].tolist()
            yield from score(logits.log_softmax(-1), targets, top)


def with_prompt(outcome: Outcome, scored: tuple[Logprob, ...]) -> Outcome:
    return replace(outcome, prompt_logprobs=scored)


def as_far_as_right(guess: Sequence[TokenId], drawn: Sequence[Outcome]) -> Outcome:
    """What was drawn after a right guess counts; `drawn` has one more than was guessed."""
    right = 0
    while right < len(guess) and drawn[right].token == guess[right]:
        right += 1
    then = [each for each in drawn[1 : right + 1] if each.error is None]
    return replace(drawn[0], then=tuple(then))


def _drawn_for(row: Row) -> Iterator[Drawing]:
    yield row.sequence
    for end in range(1, len(row.guess) + 1):
        yield row.sequence.after(row.guess[:end])


def arrays(
    rows: tuple[Row, ...], page_size: int
) -> tuple[Layout, np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray]:
    """The step's layout, and the id and position of each of its tokens."""
    counts = np.array([row.count for row in rows], np.int32)
    first = np.array([row.start for row in rows], np.int32)
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    # Joined as bytes: numpy takes a microsecond for each array it looks at.
    ids = np.frombuffer(b"".join([row.tokens for row in rows]), np.int32).astype(np.int64)
    row_of = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(len(ids)) - (starts[:-1] - first)[row_of]
    held = [row.sequence.holding.pages for row in rows if row.sequence.holding is not None]
    used = np.array([len(each) for each in held])
    pages = np.zeros((len(rows), int(used.max())), np.int32)
    pages[np.arange(pages.shape[1]) < used[:, None]] = np.frombuffer(b"".join(held), np.int32)
    page_of = pages[row_of, positions // page_size].astype(np.int64)
    slots = page_of * page_size + positions % page_size
    return Layout(starts, first + counts, pages, slots), ids, positions
