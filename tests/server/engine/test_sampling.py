"""The sampler against the plainest possible one."""

from __future__ import annotations

from collections.abc import Sequence as Listing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skirret_server.core import GenerateRequest, Grammar, Sampling, TokenSet
from skirret_server.sampling.choose import choose
from skirret_server.sampling.likeliest import likeliest
from skirret_server.sampling.sampler import sample
from skirret_server.sampling.uniform import uniform
from skirret_server.scheduler.sequence import Outcome, Sequence
from skirret_server.testing.drawing import chi_squared, probabilities

ENDS = frozenset({3})


def sequence(
    sampling: Sampling,
    generated: Listing[int] = (),
    seed: int = 0,
    grammar: Grammar | None = None,
) -> Sequence:
    request = GenerateRequest("", [1, 2], sampling, grammar=grammar)
    made = Sequence(request, 0, 0.0, seed)
    made.tokens.extend(generated)
    return made


def greedy(**options: object) -> Sampling:
    return Sampling(max_tokens=9, temperature=0.0, **options)  # type: ignore[arg-type]


def random_logits(rows: int, vocabulary: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(5)) * spread


def one(logits: Listing[float], made: Sequence) -> Outcome:
    return sample(torch.tensor([logits]), [made], ENDS)[0]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(9),
        Sampling(9, temperature=0.5),
        Sampling(9, top_k=5),
        Sampling(9, top_p=0.7),
        Sampling(9, min_p=0.1),
        Sampling(9, temperature=1.5, top_k=20, top_p=0.9, min_p=0.05),
        Sampling(9, top_p=1e-9),
        Sampling(9, top_k=1000),
    ],
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    draws, vocabulary = 3000, 40
    logits = random_logits(1, vocabulary, 1.5)
    many = [sequence(sampling, seed=seed) for seed in range(draws)]
    tokens = choose(logits.repeat(draws, 1), many, range(draws))
    expected = probabilities(logits[0], sampling) * draws
    chi2, most = chi_squared(tokens.tolist(), expected)
    assert chi2 < most


def test_top_p_of_a_flat_distribution_sees_the_whole_vocabulary() -> None:
    """More tokens than the likeliest few are needed to hold the mass."""
    draws = 500
    many = [sequence(Sampling(9, top_p=0.99), seed=seed) for seed in range(draws)]
    tokens = choose(torch.zeros(draws, 2000), many, range(draws))
    assert len(set(tokens.tolist())) > 350


samplings = st.builds(
    Sampling,
    max_tokens=st.just(9),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    top_k=st.sampled_from([-1, 1, 7]),
    min_p=st.sampled_from([0.0, 0.1]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    presence_penalty=st.sampled_from([0.0, -1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, 49), st.floats(-5, 5), max_size=3),
    min_tokens=st.integers(0, 4),
    logprobs=st.sampled_from([None, 0, 3]),
)


@given(
    rows=st.lists(
        st.tuples(samplings, st.lists(st.integers(0, 49), max_size=6), st.integers(0, 99)),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=40, deadline=None)
def test_a_row_is_drawn_alike_alone_and_among_others(
    rows: list[tuple[Sampling, list[int], int]],
) -> None:
    logits = random_logits(len(rows), 50)
    many = [sequence(sampling, generated, seed) for sampling, generated, seed in rows]
    together = sample(logits.clone(), many, ENDS)
    for row, made in enumerate(many):
        alone = sample(logits[row : row + 1].clone(), [made], ENDS)[0]
        assert alone.token == together[row].token
        assert (alone.logprob is None) == (together[row].logprob is None)


def test_greedy_takes_the_likeliest() -> None:
    assert one([0.0, 3.0, 1.0, 2.0], sequence(greedy())).token == 1


def test_penalties_count_generated_tokens_alone() -> None:
    frequency = sequence(greedy(frequency_penalty=1.0), [5, 5, 4])
    assert one([0, 0, 0, 0, 3.5, 4.4, 0], frequency).token == 4  # 5 lost 2, 4 lost 1
    presence = sequence(greedy(presence_penalty=1.0), [5, 5, 4])
    assert one([0, 0, 0, 0, 3.5, 4.4, 0], presence).token == 5  # both lost 1
    repetition = sequence(greedy(repetition_penalty=2.0), [5])
    assert one([0, 0, 0, 0, 3.0, 4.0, 0], repetition).token == 4
    assert one([-9, -9, -9, -9, -3.0, -2.0, -9], repetition).token == 4
    of_prompt = sequence(greedy(frequency_penalty=2.0))
    assert one([0, 3.0, 2.5, 0], of_prompt).token == 1  # 1 is in the prompt


def test_a_bias_moves_a_token() -> None:
    assert one([0.0, 3.0, 1.0], sequence(greedy(logit_bias={2: 5.0, 1: -1.0}))).token == 2


def test_before_min_tokens_nothing_that_ends_is_drawn() -> None:
    sampling = greedy(min_tokens=2, stop_token_ids=frozenset({0}))
    logits = [8.0, 1.0, 2.0, 9.0]
    assert one(logits, sequence(sampling, [1])).token == 2
    assert one(logits, sequence(sampling, [1, 1])).token == 3


def test_logprobs_are_those_of_the_raw_logits() -> None:
    sampling = greedy(logprobs=2, logit_bias={0: 50.0})
    outcome = one([1.0, 2.0, 4.0, 3.0], sequence(sampling))
    expected = torch.tensor([1.0, 2.0, 4.0, 3.0]).log_softmax(-1).tolist()
    assert outcome.token == 0
    assert outcome.logprob is not None
    assert outcome.logprob.logprob == pytest.approx(expected[0])
    assert [token for token, _ in outcome.logprob.top] == [2, 3]
    assert [value for _, value in outcome.logprob.top] == pytest.approx(expected[2:])


class OnlyTokens:
    """A grammar that allows the same tokens for ever."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = frozenset(tokens)

    def allowed(self) -> TokenSet:
        return TokenSet(np.array(sorted(self.tokens), np.int64))

    def accept(self, token: int) -> None:
        assert token in self.tokens

    def is_complete(self) -> bool:
        return False

    def guess(self, last: int) -> tuple[int, ...]:
        return ()

    def copy(self) -> OnlyTokens:
        return self


class AllBut(OnlyTokens):
    def allowed(self) -> TokenSet:
        return TokenSet(super().allowed().ids, are_excluded=True)


def test_the_grammar_wins_over_every_bias() -> None:
    logits = random_logits(1, 70)[0].tolist()
    made = sequence(greedy(logit_bias={69: 100.0, 2: 100.0}), grammar=OnlyTokens(40, 41))
    assert one(logits, made).token in (40, 41)


def test_a_grammar_that_allows_nothing_fails_its_sequence_alone() -> None:
    stuck = sequence(greedy(), grammar=OnlyTokens())
    outcomes = sample(random_logits(2, 64), [stuck, sequence(greedy())], ENDS)
    assert outcomes[0].error is not None
    assert "allow no token" in outcomes[0].error
    assert outcomes[1].token is not None


@pytest.mark.parametrize("sampling", [greedy(), Sampling(9), Sampling(9, top_p=0.5, logprobs=1)])
def test_nan_fails_its_sequence_alone(sampling: Sampling) -> None:
    logits = random_logits(3, 64)
    logits[1, 7] = torch.nan
    outcomes = sample(logits, [sequence(sampling, seed=seed) for seed in range(3)], ENDS)
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert [outcome.token is None for outcome in outcomes] == [False, True, False]


@pytest.mark.parametrize(("vocabulary", "count"), [(4096, 1), (4096, 40), (12_800, 5), (997, 9)])
def test_the_likeliest_are_those_of_topk(vocabulary: int, count: int) -> None:
    values = random_logits(3, vocabulary)
    found, ids = likeliest(values, count)
    expected, their_ids = values.topk(count)
    assert torch.equal(found, expected)
    assert torch.equal(ids, their_ids)


def test_a_set_of_tokens_is_said_by_those_in_it_or_by_those_out_of_it() -> None:
    logits = random_logits(2, 70)
    made = [sequence(Sampling(9), grammar=OnlyTokens(3, 69)), sequence(greedy())]
    made[1].grammar = AllBut(int(logits[1].argmax()))
    expected = logits[1].topk(2).indices[1]
    outcomes = sample(logits, made, ENDS)
    assert outcomes[0].token in (3, 69)
    assert outcomes[1].token == expected


def test_random_numbers_depend_on_seed_and_position_alone_and_look_uniform() -> None:
    numbers = [uniform(seed, position) for seed in range(100) for position in range(100)]
    assert len(set(numbers)) == 10_000
    assert 0 <= min(numbers) < 0.01
    assert 0.99 < max(numbers) < 1
    assert abs(float(np.mean(numbers)) - 0.5) < 0.02
    assert uniform(2**63, 5) == uniform(2**63, 5) != uniform(2**63 - 1, 5)
