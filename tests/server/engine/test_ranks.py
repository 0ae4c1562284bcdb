"""One model on two devices, here two processes: they answer as one does, and end as one."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from skirret_api.launch import ServerSettings
from skirret_server import engine as engines
from skirret_server.core import GenerateRequest, Sampling, Update
from skirret_server.engine.engine import SteppingEngine
from skirret_server.engine.hardware import Hardware
from skirret_server.engine.ranks import to_the_end
from skirret_server.load.errors import UnsupportedModel
from skirret_server.load.progress import Progress
from skirret_server.testing.flashinfer import fake_hardware

PROMPTS = [b"hello there", b"a", b"the quick brown fox " * 2]


def on_a_fake_gpu(settings: ServerSettings) -> Hardware:
    """At the top of a module, since the other process imports it by name."""
    return fake_hardware()


async def answers(engine: SteppingEngine) -> list[list[Update]]:
    async def answer(number: int, prompt: bytes) -> list[Update]:
        scored = 0 if number == 1 else None
        sampling = Sampling(8, temperature=0.0, ignore_eos=True, logprobs=0, prompt_logprobs=scored)
        request = GenerateRequest("", list(prompt) * (1 + number), sampling)
        return [update async for update in engine.generate(request)]

    asked = (answer(number, prompt) for number, prompt in enumerate(PROMPTS))
    return await asyncio.gather(*asked)


def numbers(updates: list[Update]) -> tuple[list[int], list[float]]:
    prompt = [each for update in updates for each in update.prompt_logprobs or () if each]
    scored = [*prompt, *(each for update in updates for each in update.logprobs)]
    return (
        [token for update in updates for token in update.tokens],
        [each.logprob for each in scored],
    )


async def test_two_processes_answer_as_one_and_the_death_of_one_is_told(tiny: Path) -> None:
    options = {"max_total_tokens": 1024, "dtype": "float32", "max_running_requests": 4}
    alone = engines.open(ServerSettings.model_validate(options), tiny, Progress())
    expected = [numbers(each) for each in await answers(alone)]
    await alone.close()

    told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    settings = ServerSettings.model_validate({**options, "tensor_parallel_size": 2})
    engine = engines.open(settings, tiny, Progress(), lambda *told_: told.put(told_), on_a_fake_gpu)
    found = [numbers(each) for each in await answers(engine)]
    for (tokens, logprobs), (their_tokens, their_logprobs) in zip(found, expected, strict=True):
        assert tokens == their_tokens
        assert logprobs == pytest.approx(their_logprobs, abs=1e-4)

    [process] = engine._stepper._runner._forward._processes  # type: ignore[attr-defined]
    os.kill(process.pid, signal.SIGKILL)
    reason, message = await asyncio.to_thread(told.get, timeout=20)
    assert reason == "RankDied"
    assert message.startswith("rank 1 of 2 ended with exit code -9")
    await engine.close()
    assert not process.is_alive()


def test_a_model_that_can_not_be_split_is_refused_before_a_process_starts(tiny: Path) -> None:
    settings = ServerSettings(device="cpu", tensor_parallel_size=4)
    with pytest.raises(UnsupportedModel, match="can't be split evenly among 4"):
        engines.open(settings, tiny, Progress())


def counted(count: int, seen: list[int]) -> Generator[torch.Tensor, None, None]:
    for at in range(count):
        seen.append(at)
        if at == 3:
            raise RuntimeError("out of memory")
        yield torch.empty(0)


def test_pieces_that_nobody_reads_are_computed_all_the_same() -> None:
    seen: list[int] = []
    pieces = to_the_end(counted(3, seen), unexpected)
    next(pieces)
    pieces.close()
    assert seen == [0, 1, 2]


def test_a_piece_that_fails_on_one_device_alone_ends_the_server() -> None:
    failures: list[Exception] = []
    pieces = to_the_end(counted(5, []), failures.append)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(pieces)
    assert len(failures) == 1


def unexpected(error: Exception) -> None:
    raise AssertionError(error)
