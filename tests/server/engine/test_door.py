"""What every engine promises at its door: the scripted one and the real one alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from skirret_server.core import (
    Draining,
    Engine,
    EngineError,
    GenerateRequest,
    Sampling,
    TokenId,
    Update,
)
from skirret_server.engine.engine import SteppingEngine
from skirret_server.testing import Script, ScriptedEngine

Open = Callable[..., SteppingEngine]


@pytest.fixture(params=["scripted", "real"])
def engine(request: pytest.FixtureRequest, open_engine: Open) -> Engine:
    if request.param == "scripted":
        return ScriptedEngine(Script(b"abcdefgh" * 500, ends=None))
    return open_engine()


def ask(prompt: bytes = b"hello", **sampling: object) -> GenerateRequest:
    options = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **sampling}
    return GenerateRequest("r", list(prompt), Sampling(**options))  # type: ignore[arg-type]


async def all_of(engine: Engine, request: GenerateRequest) -> list[Update]:
    return [update async for update in engine.generate(request)]


async def answer(engine: Engine, request: GenerateRequest) -> list[TokenId]:
    return [token for update in await all_of(engine, request) for token in update.tokens]


async def until_idle(engine: Engine) -> None:
    async with asyncio.timeout(5):
        while engine.load().running or engine.load().waiting:
            await asyncio.sleep(0.01)


async def test_an_answer_ends_with_its_limit(engine: Engine) -> None:
    updates = await all_of(engine, ask())
    assert sum(len(update.tokens) for update in updates) == 8
    assert [update.finish is None for update in updates] == [True] * (len(updates) - 1) + [False]
    assert updates[-1].finish is not None
    assert updates[-1].finish.reason == "length"


async def test_a_stop_token_ends_the_answer_and_is_part_of_it(engine: Engine) -> None:
    first = await answer(engine, ask())
    stop = first[4]
    updates = await all_of(engine, ask(stop_token_ids=frozenset({stop})))
    tokens = [token for update in updates for token in update.tokens]
    assert tokens == first[: first.index(stop) + 1]
    assert updates[-1].finish is not None
    assert (updates[-1].finish.reason, updates[-1].finish.stop_token) == ("stop", stop)


async def test_no_tokens_asked_none_given(engine: Engine) -> None:
    [update] = await all_of(engine, ask(max_tokens=0))
    assert update.tokens == ()
    assert update.finish is not None
    assert update.finish.reason == "length"


async def test_logprobs_come_with_every_token(engine: Engine) -> None:
    for update in await all_of(engine, ask(logprobs=2)):
        assert [each.token for each in update.logprobs] == list(update.tokens)
        assert all(len(each.top) == 2 for each in update.logprobs)


async def test_prompt_logprobs_come_once_and_say_nothing_of_the_first_token(
    engine: Engine,
) -> None:
    for max_tokens in (0, 3):
        updates = await all_of(engine, ask(b"abc", max_tokens=max_tokens, prompt_logprobs=0))
        scored = updates[0].prompt_logprobs
        assert scored is not None
        assert [each and each.token for each in scored] == [None, *b"bc"]
        assert all(update.prompt_logprobs is None for update in updates[1:])


async def test_many_answers_at_once_are_each_their_own(engine: Engine) -> None:
    prompts = [bytes([65 + index]) * (index + 1) for index in range(12)]
    alone = [await answer(engine, ask(prompt)) for prompt in prompts]
    together = await asyncio.gather(*(answer(engine, ask(prompt)) for prompt in prompts))
    assert together == alone


async def test_closing_the_iterator_aborts(engine: Engine) -> None:
    async with aclosing(engine.generate(ask(max_tokens=1500))) as updates:  # type: ignore[type-var]
        async for _ in updates:
            break
    await until_idle(engine)
    assert engine.stats().aborted == 1
    assert engine.stats().generation_tokens < 1500


async def test_draining_ends_what_runs_and_refuses_what_comes(engine: Engine) -> None:
    running = asyncio.create_task(answer(engine, ask(max_tokens=50)))
    while not engine.stats().generation_tokens:
        await asyncio.sleep(0.001)
    drained = asyncio.create_task(engine.drain())
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        await answer(engine, ask())
    await drained
    assert len(await running) == 50


async def test_closing_ends_what_runs_with_an_error(engine: Engine) -> None:
    running = asyncio.create_task(answer(engine, ask(max_tokens=2000)))
    while not engine.stats().generation_tokens:
        await asyncio.sleep(0.001)
    await engine.close()
    with pytest.raises(EngineError):
        await running
    with pytest.raises(EngineError):
        await answer(engine, ask())
    await engine.close()


async def test_counts_add_up(engine: Engine) -> None:
    await answer(engine, ask(b"abc"))
    await answer(engine, ask(b"abc"))
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generation_tokens) == (6, 16)
    assert stats.finished == {"length": 2}
