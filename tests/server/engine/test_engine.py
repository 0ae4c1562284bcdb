"""The real engine on a tiny random model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
import torch

from skirret_api.launch import ServerSettings
from skirret_server import engine as engines
from skirret_server.cache.prefix import PrefixCache
from skirret_server.core import (
    EngineError,
    GenerateRequest,
    ModelInfo,
    QueueFull,
    Refused,
    Sampling,
    TokenId,
    TokenSet,
)
from skirret_server.engine.engine import SteppingEngine
from skirret_server.engine.watchdog import Watchdog
from skirret_server.load.progress import Progress
from skirret_server.scheduler.scheduler import Limits, Scheduler
from skirret_server.scheduler.sequence import Outcome, Step
from skirret_server.testing import END_OF_TEXT, IM_END, TINY_VOCABULARY

Open = Callable[..., SteppingEngine]


def unexpected(reason: str, message: str) -> None:
    raise AssertionError(f"{reason}: {message}")


def ask(prompt: bytes = b"hello", grammar: object = None, **sampling: object) -> GenerateRequest:
    options = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **sampling}
    return GenerateRequest(
        "r",
        list(prompt),
        Sampling(**options),  # type: ignore[arg-type]
        grammar=grammar,  # type: ignore[arg-type]
    )


async def answer(engine: SteppingEngine, request: GenerateRequest) -> list[TokenId]:
    return [token async for update in engine.generate(request) for token in update.tokens]


async def settled(engine: SteppingEngine) -> None:
    async with asyncio.timeout(5):
        while engine.load().running or engine.load().waiting:
            await asyncio.sleep(0.01)


async def test_an_answer_is_the_same_however_it_is_computed(open_engine: Open) -> None:
    """Whole or in chunks, from the cache or not, with pages of any size, and short of pages."""
    prompt = bytes(random.Random(1).randrange(256) for _ in range(150))
    expected = await answer(open_engine(), ask(prompt, max_tokens=40))
    for options in (
        {"chunked_prefill_size": 16, "max_running_requests": 4},
        {"page_size": 1},
        {"disable_radix_cache": True},
        {"max_total_tokens": 208},
    ):
        engine = open_engine(**options)
        assert await answer(engine, ask(prompt, max_tokens=40)) == expected
        assert await answer(engine, ask(prompt, max_tokens=40)) == expected


async def test_answers_survive_retraction(open_engine: Open) -> None:
    never_ends = {IM_END: -100.0, END_OF_TEXT: -100.0}
    many = [
        ask(bytes([40 + index]) * 20, max_tokens=60, ignore_eos=False, logit_bias=never_ends)
        for index in range(6)
    ]
    roomy, engine = open_engine(), open_engine(max_total_tokens=144)
    alone = [await answer(roomy, each) for each in many]
    together = await asyncio.gather(*(answer(engine, each) for each in many))
    assert together == alone
    assert engine.stats().retractions > 0


async def test_a_seed_fixes_the_answer_whatever_else_runs(open_engine: Open) -> None:
    engine = open_engine()
    seeded = ask(b"abc", temperature=1.0, seed=7, max_tokens=20)
    alone = await answer(engine, seeded)
    others = [ask(b"xyz", temperature=1.0, max_tokens=20) for _ in range(10)]
    among, *rest = await asyncio.gather(*(answer(engine, each) for each in [seeded, *others]))
    assert among == alone
    assert len({tuple(each) for each in rest}) > 5


async def test_a_prompt_asked_again_comes_from_the_cache(open_engine: Open) -> None:
    engine = open_engine(page_size=4)
    first = [update async for update in engine.generate(ask(b"a prompt of twenty b"))]
    again = [update async for update in engine.generate(ask(b"a prompt of twenty b"))]
    assert first[0].cached_tokens == 0
    assert again[0].cached_tokens == 16  # all whole pages but the last token's
    assert all(update.cached_tokens == 0 for update in again[1:])
    assert engine.stats().cache_hit_tokens == 16


async def test_prompt_logprobs_agree_with_the_answers_own(open_engine: Open) -> None:
    engine = open_engine(chunked_prefill_size=16, max_running_requests=4)
    drawn = [update async for update in engine.generate(ask(b"once", max_tokens=30, logprobs=0))]
    tokens = [token for update in drawn for token in update.tokens]
    values = [each.logprob for update in drawn for each in update.logprobs]
    prompt = [*b"once", *tokens]
    request = GenerateRequest("r", prompt, Sampling(max_tokens=0, prompt_logprobs=0))
    [scored] = [update async for update in engine.generate(request)]
    assert scored.prompt_logprobs is not None
    assert [each.logprob for each in scored.prompt_logprobs[4:] if each] == pytest.approx(
        values, abs=1e-4
    )


async def test_an_end_token_ends_the_answer_once_min_tokens_are_there(open_engine: Open) -> None:
    engine = open_engine()
    bias = {IM_END: 100.0}
    assert await answer(engine, ask(logit_bias=bias, ignore_eos=False)) == [IM_END]
    tokens = await answer(engine, ask(logit_bias=bias, ignore_eos=False, min_tokens=3))
    assert len(tokens) == 4
    assert tokens[-1] == IM_END
    assert await answer(engine, ask(logit_bias=bias)) == [IM_END] * 8


class Spells:
    """A grammar whose only text is `text`."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def allowed(self) -> TokenSet:
        nexts = [IM_END, END_OF_TEXT] if self.is_complete() else [self.text[self.at]]
        return TokenSet(np.array(nexts, np.int64))

    def accept(self, token: int) -> None:
        assert token == self.text[self.at]
        self.at += 1

    def is_complete(self) -> bool:
        return self.at == len(self.text)

    def guess(self, last: int) -> tuple[int, ...]:
        return ()

    def copy(self) -> Spells:
        return Spells(self.text)


async def test_a_complete_grammar_ends_the_answer_without_an_end_token(open_engine: Open) -> None:
    updates = [update async for update in open_engine().generate(ask(grammar=Spells(b"[1]")))]
    assert [token for update in updates for token in update.tokens] == list(b"[1]")
    assert updates[-1].finish is not None
    assert updates[-1].finish.reason == "stop"


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (GenerateRequest("r", [], Sampling(1)), "no tokens"),
        (GenerateRequest("r", [1] * 2000, Sampling(49)), "more than the context of 2048"),
        (GenerateRequest("r", [1, TINY_VOCABULARY], Sampling(1)), "outside of 0 to 273"),
        (GenerateRequest("r", [-1], Sampling(1)), "outside of 0 to 273"),
    ],
)
async def test_what_can_never_be_answered_is_refused_before_any_work(
    open_engine: Open, request_: GenerateRequest, complaint: str
) -> None:
    engine = open_engine()
    with pytest.raises(Refused, match=complaint):
        await answer(engine, request_)
    assert engine.stats().steps == 0


async def test_a_full_queue_refuses(open_engine: Open) -> None:
    engine = open_engine(max_running_requests=1, max_queued_requests=2)
    many = [answer(engine, ask(bytes([index]), max_tokens=40)) for index in range(10)]
    results = await asyncio.gather(*many, return_exceptions=True)
    refused = [each for each in results if isinstance(each, QueueFull)]
    assert len(refused) + sum(isinstance(each, list) for each in results) == 10
    assert refused


async def test_an_abort_storm_leaves_everything_as_it_was(open_engine: Open) -> None:
    engine = open_engine(max_running_requests=8, max_queued_requests=1000)
    dice = random.Random(4)

    async def one(index: int) -> None:
        request = ask(bytes(dice.randrange(256) for _ in range(dice.randrange(1, 90))))
        stop_after = dice.randrange(1, 4) if dice.random() < 0.3 else 99
        async with aclosing(engine.generate(request)) as updates:  # type: ignore[type-var]
            seen = 0
            async for _ in updates:
                seen += 1
                if seen >= stop_after:
                    return

    await asyncio.gather(*(one(index) for index in range(100)))
    await settled(engine)
    stepper = engine._stepper
    stepper.check()
    assert stepper.is_idle
    assert not stepper._clients
    assert not stepper._sequences
    assert stepper.stats().kv_usage == 0
    assert stepper.stats().aborted > 10


async def test_a_slow_reader_gets_its_updates_merged(open_engine: Open) -> None:
    engine = open_engine()
    expected = await answer(engine, ask(max_tokens=100))
    async with aclosing(engine.generate(ask(max_tokens=100))) as updates:  # type: ignore[type-var]
        tokens: list[TokenId] = []
        count = 0
        async for update in updates:
            tokens += update.tokens
            count += 1
            await asyncio.sleep(0.02)
    assert tokens == expected
    assert count < 100


async def test_nan_in_one_sequence_leaves_the_others_and_its_pages_clean(
    open_engine: Open,
) -> None:
    engine = open_engine(page_size=4)
    expected = await answer(engine, ask(b"good"))
    decoder = engine._stepper._runner._forward._decoder  # type: ignore[attr-defined]
    decoder.embedding[250] = torch.nan
    good, bad = await asyncio.gather(
        answer(engine, ask(b"good")), answer(engine, ask(b"bad\xfa")), return_exceptions=True
    )
    assert good == expected
    assert isinstance(bad, EngineError)
    assert "no numbers" in str(bad)
    assert await answer(engine, ask(b"good" * 9)) == await answer(engine, ask(b"good" * 9))
    assert engine.stats().failed == 1


class Broken:
    """A runner whose steps fail, or hang, on command."""

    def __init__(self) -> None:
        self.failures = 0
        self.hold: asyncio.Event | None = None

    def run(self, step: Step) -> Sequence[Outcome]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("out of paper")
        return [Outcome(token=1 if row.samples else None) for row in step.rows]

    def wipe(self, pages: list[int]) -> None:
        pass


def broken(fatal: Callable[[str, str], None] = unexpected) -> tuple[SteppingEngine, Broken]:
    runner = Broken()
    info = ModelInfo(300, 1000, frozenset({IM_END}), 1600)
    limits = Limits(step_tokens=32, running=4, queued=10)
    engine = SteppingEngine(Scheduler(PrefixCache(100, 16), limits), runner, info, fatal=fatal)
    engine.start()
    return engine, runner


async def test_a_failed_step_fails_its_sequences_and_the_engine_goes_on() -> None:
    engine, runner = broken()
    runner.failures = 1
    with pytest.raises(EngineError, match="out of paper"):
        await answer(engine, ask())
    assert await answer(engine, ask()) == [1] * 8
    await engine.close()


async def test_an_engine_that_only_fails_gives_up_and_tells_everyone() -> None:
    told: list[str] = []
    engine, runner = broken(lambda reason, message: told.append(f"{reason} {message}"))
    runner.failures = 3
    for _ in range(3):
        with pytest.raises(EngineError):
            await answer(engine, ask())
    await engine.close()
    assert told == ["EngineFailed RuntimeError: out of paper"]


async def test_the_watchdog_reports_a_step_that_hangs(capfd: pytest.CaptureFixture[str]) -> None:
    hung = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(seconds: float) -> None:
        loop.call_soon_threadsafe(hung.set)

    watchdog = Watchdog(running=lambda: 0.2, timeout=0.1, hung=tell)
    watchdog.start()
    async with asyncio.timeout(5):
        await hung.wait()
    watchdog.stop()
    assert "most recent call first" in capfd.readouterr().err


@pytest.mark.model
@pytest.mark.parametrize(("dtype", "others"), [("float32", 32), ("bfloat16", 0)])
async def test_smollm2_knows_the_capital_of_france(dtype: str, others: int) -> None:
    """In either number format, alone and among others that ask the like."""
    from tokenizers import Tokenizer

    folder = Path(__file__).parents[3] / ".cache/models/smollm2"
    settings = ServerSettings.model_validate({"max_total_tokens": 8192, "dtype": dtype})
    engine = engines.open(settings, folder, Progress(), unexpected)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def question(country: str) -> GenerateRequest:
        text = (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            f"Face<|im_end|>\n<|im_start|>user\nWhat is the capital of {country}?<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        return GenerateRequest(
            country, tokenizer.encode(text).ids, Sampling(max_tokens=10, temperature=0.0)
        )

    many = [question("France"), *(question(f"Italy {index}") for index in range(others))]
    alone = await answer(engine, many[0])
    among, *_ = await asyncio.gather(*(answer(engine, each) for each in many))
    await engine.close()
    assert tokenizer.decode(alone) == "The capital of France is Paris."
    assert among == alone
