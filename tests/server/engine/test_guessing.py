"""Tokens that grammars expect are computed before they are drawn: the answer stays the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import numpy as np
import pytest

from skirret_server.core import GenerateRequest, Grammar, Sampling, TokenId, TokenSet, Update
from skirret_server.engine.engine import SteppingEngine
from skirret_server.grammar.automaton import Budget
from skirret_server.grammar.likely import NONE
from skirret_server.grammar.making import make
from skirret_server.grammar.masks import CompiledGrammar, MaskCache, Vocabulary
from skirret_server.grammar.spec import Spec
from skirret_server.testing import END_OF_TEXT, IM_END, TINY_VOCABULARY

Open = Callable[..., SteppingEngine]

FIELDS = ("first_name", "last_name", "age", "email", "active", "city", "country", "occupation")
FLAT = Spec.of(
    "json_schema",
    {
        "type": "object",
        "properties": {name: {"type": "string", "maxLength": 3} for name in FIELDS},
        "required": list(FIELDS),
    },
)


def vocabulary() -> Vocabulary:
    tokens = [bytes([each]) for each in range(256)]
    return Vocabulary(tokens, [], [IM_END, END_OF_TEXT], TINY_VOCABULARY, lambda t: [*t.encode()])


def compiled(spec: Spec, *, guesses: bool = True) -> CompiledGrammar:
    made = make(spec, Budget())
    likely = made.likely if guesses else np.full_like(made.likely, NONE)
    return CompiledGrammar(made.automaton, likely, MaskCache(vocabulary()))


async def answer(engine: SteppingEngine, grammar: Grammar, **sampling: object) -> list[Update]:
    options = {"max_tokens": 300, "temperature": 1.0, "seed": 3, **sampling}
    request = GenerateRequest(
        "r",
        list(b"who?"),
        Sampling(**options),  # type: ignore[arg-type]
        grammar=grammar,
    )
    return [update async for update in engine.generate(request)]


def tokens(updates: list[Update]) -> list[TokenId]:
    return [token for update in updates for token in update.tokens]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "max_tokens": 57},
        {"logprobs": 2},
        {"stop_token_ids": frozenset(b"y"), "min_tokens": 30},
        {"logit_bias": {0x20: 5.0}, "frequency_penalty": 1.0},
    ],
    ids=str,
)
async def test_an_answer_is_the_same_with_guesses_and_takes_fewer_steps(
    open_engine: Open, options: dict[str, object]
) -> None:
    engine = open_engine(page_size=4)
    plain = await answer(engine, compiled(FLAT, guesses=False).start(), **options)
    steps = engine.stats().steps
    guessed = await answer(engine, compiled(FLAT).start(), **options)
    assert tokens(guessed) == tokens(plain)
    assert guessed[-1].finish == plain[-1].finish
    drawn, expected = (
        [each for update in updates for each in update.logprobs] for updates in (guessed, plain)
    )
    assert [each.token for each in drawn] == [each.token for each in expected]
    assert [each.logprob for each in drawn] == pytest.approx(
        [each.logprob for each in expected], abs=1e-4
    )
    saved = 1 - (engine.stats().steps - steps) / steps
    assert saved > 0.2
    assert engine.stats().jumped_tokens > 0


class WildGuesses:
    """A grammar that guesses any texts that it allows, nearly always wrong."""

    def __init__(self, inner: Grammar, seed: int) -> None:
        self.inner = inner
        self.seed = seed

    def allowed(self) -> TokenSet:
        return self.inner.allowed()

    def accept(self, token: TokenId) -> None:
        self.inner.accept(token)

    def is_complete(self) -> bool:
        return self.inner.is_complete()

    def copy(self) -> WildGuesses:
        return WildGuesses(self.inner.copy(), self.seed)

    def guess(self, last: TokenId) -> tuple[TokenId, ...]:
        self.seed += 1
        chance, ahead, found = random.Random(self.seed), self.inner.copy(), []
        for _ in range(chance.randrange(12)):
            choices = [each for each in ahead.allowed().ids.tolist() if each < 256]
            if not choices:
                break
            found.append(chance.choice(choices))
            ahead.accept(found[-1])
        return tuple(found)


async def test_wrong_guesses_change_nothing_even_where_pages_are_short(open_engine: Open) -> None:
    letters = compiled(Spec.of("regex", "[a-d]{60}"), guesses=False)
    roomy, engine = open_engine(), open_engine(max_total_tokens=112, page_size=4)
    alone = [
        tokens(await answer(roomy, letters.start(), seed=seed, max_tokens=70)) for seed in range(6)
    ]
    together = await asyncio.gather(
        *(
            answer(engine, WildGuesses(letters.start(), 100 * s), seed=s, max_tokens=70)
            for s in range(6)
        )
    )
    assert list(map(tokens, together)) == alone
    assert engine.stats().retractions > 0
    assert engine.stats().jumped_tokens > 0
