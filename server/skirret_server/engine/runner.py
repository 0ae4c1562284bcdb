"""Runs one step: arrays for the model, the model, the sampler."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from skirret_server.attention.interface import Layout
from skirret_server.core import Logprob, TokenId
from skirret_server.engine.forward import Batch, Forward, Int64s
from skirret_server.sampling.launched import Drawn
from skirret_server.sampling.sampler import sample, score
from skirret_server.scheduler.sequence import Outcome, Row, Step
from skirret_server.scheduler.sequence import Sequence as Drawing

PENDING: TokenId = -1  # drawn by a step that runs still

# The most logits in memory at once, in rows: those of a long prompt would be gigabytes.
_SCORED = 64


class Computes(Protocol):
    """`Forward`, of one device or of several that compute together."""

    def logits(self, batch: Batch, ids_T: Tensor) -> Generator[Tensor, None, None]: ...

    def wipe(self, pages: list[int]) -> None: ...


class Launch(Protocol):
    """A step that was launched."""

    def outcomes(self) -> list[Outcome]:
        """One for each row; waits until it is computed. Asked once."""


class Draw(Protocol):
    """A sampler."""

    def __call__(
        self, logits_RV: Tensor, sequences: Sequence[Drawing], end_tokens: Set[TokenId]
    ) -> Drawn: ...


def draw_at_once(
    logits_RV: Tensor, sequences: Sequence[Drawing], end_tokens: Set[TokenId]
) -> Drawn:
    """The sampler of the CPU."""
    outcomes = sample(logits_RV, sequences, end_tokens)
    tokens = torch.tensor([each.token or 0 for each in outcomes])
    return Drawn(tokens, lambda: outcomes)


class ModelRunner:
    """Computes steps: arrays for the model, the model, the sampler.

    A step may be launched before the outcomes of the one before it were asked for. A token that the
    host does not know yet is `PENDING`, the last of its row: it is the one that its sequence drew
    in the step launched last, and the device puts it in. Such a row must not be one whose sampling
    looks at its own tokens: no grammar, no penalty.
    """

    def __init__(
        self,
        forward: Forward,
        end_tokens: Set[TokenId],
        *,
        together: Computes | None = None,
        draw: Draw = draw_at_once,
    ) -> None:
        """`together` computes with other devices, and `forward` is this one's part of it."""
        self._device = forward.device
        self._page_size = forward.pool.page_size
        self._forward: Computes = together or forward
        self._end_tokens = end_tokens
        self._draw = draw
        self._drawn: Drawn | None = None
        self._places: dict[Drawing, int] = {}  # where each sequence drew in the step launched last

    def run(self, step: Step) -> list[Outcome]:
        """One outcome for each row."""
        return self.launch(step).outcomes()

    @torch.inference_mode()
    def launch(self, step: Step) -> Launch:
        """Returns before the device has computed it, if the device is another than the host."""
        layout, ids, positions = arrays(step.rows, self._page_size)
        ids_T = self._known(step, ids)
        sampled = [index for index, row in enumerate(step.rows) if row.samples]
        scored = [index for index, row in enumerate(step.rows) if _scores(row)]
        pieces = [
            (index, first, last) for index in scored for first, last in _pieces(step.rows[index])
        ]
        # Where a guess was computed, the tokens after each part of it are drawn too.
        drawn_at = [
            int(layout.starts[index + 1]) - 1 - back
            for index in sampled
            for back in range(len(step.rows[index].guess), -1, -1)
        ]
        wanted = [np.array(drawn_at, np.int64)] if sampled else []
        wanted += [
            np.arange(first, last) + (int(layout.starts[index]) - step.rows[index].start)
            for index, first, last in pieces
        ]
        self._drawn, self._places = None, {}
        prompts: dict[int, list[Logprob]] = {index: [] for index in scored}
        with closing(
            self._forward.logits(Batch(layout, positions, tuple(wanted)), ids_T)
        ) as logits:
            if sampled:
                sequences = [each for index in sampled for each in _drawn_for(step.rows[index])]
                self._drawn = self._draw(next(logits), sequences, self._end_tokens)
                self._places = {each: place for place, each in enumerate(sequences)}
            for (index, first, last), logits_RV in zip(pieces, logits, strict=True):
                sequence = step.rows[index].sequence
                top = sequence.request.sampling.prompt_logprobs or 0
                targets = sequence.tokens[first + 1 : last + 1].tolist()
                prompts[index] += score(logits_RV.log_softmax(-1), targets, top)
        return _Launched(step, sampled, self._drawn, prompts)

    def wipe(self, pages: list[int]) -> None:
        self._forward.wipe(pages)

    def _known(self, step: Step, ids: Int64s) -> Tensor:
        """ids_T on the device, pending ones filled in there."""
        pending = np.flatnonzero(ids == PENDING)
        if not len(pending):
            return self._device.put(ids)
        assert self._drawn is not None, "a token is pending that nobody draws"
        ends = np.cumsum([row.count for row in step.rows]) - 1
        rows = np.searchsorted(ends, pending)
        assert (ends[rows] == pending).all(), "only a row's last token can be pending"
        ids[pending] = 0
        places = np.array([self._places[step.rows[row].sequence] for row in rows], np.int64)
        tokens = self._drawn.tokens_R.index_select(0, self._device.put(places))
        return self._device.put(ids).index_copy_(0, self._device.put(pending), tokens)


@dataclass(frozen=True, slots=True)
class _Launched:
    step: Step
    sampled: list[int]  # rows
    drawn: Drawn | None
    prompts: dict[int, list[Logprob]]  # of the rows that want them

    def outcomes(self) -> list[Outcome]:
        outcomes = [Outcome()] * len(self.step.rows)
        if self.drawn is not None:
            drawn = iter(self.drawn.outcomes())
            for index in self.sampled:
                guess = self.step.rows[index].guess
                outcomes[index] = as_far_as_right(guess, list(islice(drawn, len(guess) + 1)))
        for index, scored in self.prompts.items():
            outcomes[index] = with_prompt(outcomes[index], tuple(scored))
        return outcomes


def _scores(row: Row) -> bool:
    return row.sequence.request.sampling.prompt_logprobs is not None


def _pieces(row: Row) -> Iterator[tuple[int, int]]:
    """Of the row, tokens that another of the prompt follows; as many at once as are scored."""
    end = min(row.start + row.count, row.sequence.prompt_length - 1)
    for first in range(row.start, end, _SCORED):
        yield first, min(first + _SCORED, end)


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


def arrays(rows: tuple[Row, ...], page_size: int) -> tuple[Layout, Int64s, Int64s]:
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
