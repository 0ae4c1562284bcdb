"""What a GPU is given to do: sampling that waits for nothing, and steps launched ahead."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Listing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skirret_api.launch import ServerSettings
from skirret_server import engine as engines
from skirret_server.cache.prefix import PrefixCache
from skirret_server.core import GenerateRequest, Sampling, TokenId, TokenSet
from skirret_server.engine.build import Plan, build
from skirret_server.engine.graphs import sizes
from skirret_server.engine.runner import PENDING, ModelRunner
from skirret_server.load.progress import Progress
from skirret_server.sampling.launched import Sampler
from skirret_server.sampling.sampler import sample
from skirret_server.scheduler.sequence import Outcome, Row, Sequence, Step
from skirret_server.testing.drawing import chi_squared, probabilities
from skirret_server.testing.flashinfer import fake_hardware, fake_library
from skirret_server.testing.gpu import FakeGpu

ENDS = frozenset({3})

pytestmark = pytest.mark.usefixtures("workspace")


def sequence(sampling: Sampling, generated: Listing[int] = (), seed: int = 0) -> Sequence:
    made = Sequence(GenerateRequest("", [1, 2], sampling), 0, 0.0, seed)
    made.tokens.extend(generated)
    return made


def random_logits(rows: int, vocabulary: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(5)) * spread


def drawn(logits: torch.Tensor, many: list[Sequence], seed: int = 0) -> list[Outcome]:
    gpu = FakeGpu()
    launched = Sampler(gpu, fake_library(gpu), seed).draw(logits, many, ENDS)
    assert gpu.waits == 0
    return launched.outcomes()


certain = st.builds(
    Sampling,
    max_tokens=st.just(9),
    temperature=st.just(0.0),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, 49), st.floats(-5, 5), max_size=3),
    min_tokens=st.integers(0, 4),
    logprobs=st.sampled_from([None, 0, 3]),
)
seeded = st.builds(
    Sampling,
    max_tokens=st.just(9),
    temperature=st.sampled_from([1e-30, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    top_k=st.sampled_from([-1, 1, 7, 1000]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.just(1),
)


@given(rows=st.lists(st.tuples(certain, st.lists(st.integers(0, 49), max_size=6)), min_size=1))
@settings(max_examples=30, deadline=None)
def test_what_is_certain_is_what_the_cpu_draws(rows: list[tuple[Sampling, list[int]]]) -> None:
    logits = random_logits(len(rows), 50)
    many = [sequence(sampling, generated) for sampling, generated in rows]
    for found, expected in zip(
        drawn(logits.clone(), many), sample(logits.clone(), many, ENDS), strict=True
    ):
        assert found.token == expected.token
        if expected.logprob is None:
            assert found.logprob is None
            continue
        assert found.logprob is not None
        assert found.logprob.logprob == pytest.approx(expected.logprob.logprob)
        assert [x for x, _ in found.logprob.top] == [x for x, _ in expected.logprob.top]


@given(
    rows=st.lists(
        st.tuples(certain | seeded, st.lists(st.integers(0, 49), max_size=6), st.integers(0, 99)),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=30, deadline=None)
def test_a_seed_draws_alike_alone_and_among_others(
    rows: list[tuple[Sampling, list[int], int]],
) -> None:
    logits = random_logits(len(rows), 50)
    many = [sequence(sampling, generated, seed) for sampling, generated, seed in rows]
    together = drawn(logits.clone(), many)
    for row, made in enumerate(many):
        assert drawn(logits[row : row + 1].clone(), [made])[0].token == together[row].token


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(9),
        Sampling(9, temperature=0.5, top_k=7),
        Sampling(9, top_p=0.7),
        Sampling(9, top_p=1e-9),
        Sampling(9, min_p=0.1),
        Sampling(9, temperature=1.5, top_k=20, top_p=0.9, min_p=0.05),
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_draws_follow_the_distribution(sampling: Sampling, seed: int | None) -> None:
    draws, vocabulary = 3000, 40
    logits = random_logits(1, vocabulary, 1.5)
    many = [sequence(replace(sampling, seed=seed), seed=row) for row in range(draws)]
    tokens = [each.token or 0 for each in drawn(logits.repeat(draws, 1), many)]
    chi2, most = chi_squared(tokens, probabilities(logits[0], sampling) * draws)
    assert chi2 < most


class Nothing:
    """A grammar that allows no token."""

    def allowed(self) -> TokenSet:
        return TokenSet(np.zeros(0, np.int64))


def test_a_row_without_numbers_or_choice_fails_alone() -> None:
    logits = random_logits(4, 64)
    logits[1, 7] = torch.nan
    many = [sequence(Sampling(9)) for _ in range(4)]
    many[2].grammar = Nothing()  # type: ignore[assignment]
    outcomes = drawn(logits, many)
    assert [outcome.error is None for outcome in outcomes] == [True, False, False, True]
    assert "no numbers" in str(outcomes[1].error)
    assert "allow no token" in str(outcomes[2].error)


def test_a_graph_is_as_large_as_needed_and_little_larger() -> None:
    assert sizes(1) == (1,)
    assert sizes(9) == (1, 2, 4, 8, 16)
    assert sizes(4096)[-1] == 256


# Steps launched before the one before them is read


def runner_on(gpu: FakeGpu, folder: Path) -> ModelRunner:
    asked = ServerSettings(max_total_tokens=512, dtype="float32", max_running_requests=4)
    on = fake_hardware(gpu)
    description, dtype, size = engines.check(asked, folder, on)
    plan = Plan(asked, folder, description, dtype, size)
    forward = build(plan, on, gpu, Progress())
    return ModelRunner(forward, ENDS, draw=Sampler(gpu, on.library(), 0).draw)


PROMPTS = (b"hello", b"a", b"the quick brown fox")
TOKENS = 9


def begun() -> list[Sequence]:
    """Sequences of which one is seeded, with pages for all they will be."""
    cache = PrefixCache(32, 16)
    made = []
    for number, prompt in enumerate(PROMPTS):
        sampling = Sampling(TOKENS, temperature=float(number == 1), seed=7)
        each = Sequence(GenerateRequest("", list(prompt), sampling), number, 0.0, 7)
        each.holding = cache.hold(array("i"), 0, "")
        cache.grow(each.holding, len(prompt) + TOKENS)
        made.append(each)
    return made


def step_of(sequences: list[Sequence]) -> Step:
    rows = tuple(Row(each, each.computed, each.remaining, True) for each in sequences)
    for each in sequences:
        each.computed = each.length
    return Step(rows)


def one_by_one(runner: ModelRunner) -> list[list[TokenId]]:
    sequences = begun()
    for _ in range(TOKENS):
        for each, outcome in zip(sequences, runner.run(step_of(sequences)), strict=True):
            each.tokens.append(outcome.token or 0)
    return [each.tokens.tolist() for each in sequences]


def test_steps_launched_ahead_compute_the_same_and_wait_for_nothing(tiny: Path) -> None:
    gpu = FakeGpu()
    expected = one_by_one(runner_on(FakeGpu(), tiny))
    runner, sequences = runner_on(gpu, tiny), begun()
    launched = runner.launch(step_of(sequences))
    for at in range(TOKENS):
        ahead = None
        if at + 1 < TOKENS:
            for each in sequences:
                each.tokens.append(PENDING)
            waits = gpu.waits
            order = sequences[::-1] if at % 2 else sequences  # as after a retraction
            ahead = runner.launch(step_of(order))
            assert gpu.waits == waits
        for row, outcome in zip(launched.step.rows, launched.outcomes(), strict=True):  # type: ignore[attr-defined]
            tokens = row.sequence.tokens
            if ahead is None:
                tokens.append(outcome.token or 0)
            else:
                tokens[-1] = outcome.token or 0
        if ahead is not None:
            launched = ahead
    assert [each.tokens.tolist() for each in sequences] == expected


def test_a_pending_token_that_nobody_draws_is_a_mistake(tiny: Path) -> None:
    runner, sequences = runner_on(FakeGpu(), tiny), begun()
    sequences[0].tokens.append(PENDING)
    with pytest.raises(AssertionError, match="nobody draws"):
        runner.launch(step_of(sequences))
