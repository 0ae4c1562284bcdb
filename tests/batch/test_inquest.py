"""Engines die: of a line, of many, of nobody, or whatever they are asked."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from skirret_batch import record as records
from skirret_batch.completions import Answer, Broken
from skirret_batch.folder import Folder
from skirret_batch.plan import Body
from skirret_batch.testing import (
    FakeCompletions,
    MortalEngine,
    Outcome,
    chat_line,
    completion,
    error_answer,
    last_message,
    outcome,
    submit,
)
from skirret_batch.worker import Worker, WorkerSettings
from skirret_batch.worker.inquest import Inquest, Work


def numbered(count: int) -> list[bytes]:
    return [chat_line(f"c{n}", f"t{n:03}") for n in range(count)]


async def ran(
    folder: Folder, engine: FakeCompletions, settings: WorkerSettings, count: int, workers: int = 1
) -> Outcome:
    """What became of the lines, each of which has an end."""
    batch_id = await submit(folder, *numbered(count), parallelism=workers)
    lives = [
        Worker(folder, batch_id, engine, settings, slot=str(slot)).live() for slot in range(workers)
    ]
    async with asyncio.timeout(60):
        record = (await asyncio.gather(*lives))[0]
    result = await outcome(folder, record)
    assert sorted(result.ids) == sorted(f"c{n}" for n in range(count))
    return result


async def test_a_line_that_ends_the_engine_twice_is_set_aside(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = MortalEngine("t009")
    result = await ran(folder, engine, fast, 60)
    assert result.errors == {"c9": 500}
    assert result.error[0]["response"]["body"]["error"]["code"] == "engine_died"
    assert engine.deaths == engine.died_with["t009"] == 2


async def test_many_lines_that_end_engines_are_all_found_and_no_other(
    folder: Folder, fast: WorkerSettings
) -> None:
    poison = [f"t{n:03}" for n in (0, 1, 2, 30, 31, 57, 80, 99)]
    engine = MortalEngine(*poison)
    result = await ran(folder, engine, replace(fast, shard_lines=30), 100)
    assert result.errors == {f"c{int(text[1:])}": 500 for text in poison}
    assert max(engine.died_with.values()) <= 3 + len(poison) // 2  # company included


async def test_an_engine_that_goes_on_dying_of_nobody_fails_no_line(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = MortalEngine(dies_at=now_and_then(random.Random(1)))
    result = await ran(folder, engine, fast, 150)
    assert result.errors == {}
    assert engine.deaths > 3


async def test_a_line_that_ends_engines_is_found_among_deaths_of_nobody(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = MortalEngine("t077", dies_at=now_and_then(random.Random(2)))
    result = await ran(folder, engine, fast, 100)
    assert result.errors == {"c77": 500}


async def test_a_line_of_one_worker_is_not_laid_on_one_of_another(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = MortalEngine("t005")
    result = await ran(folder, engine, replace(fast, shard_lines=10), 60, workers=2)
    assert result.errors == {"c5": 500}


async def test_a_line_beside_requests_of_others_is_asked_once_more(
    folder: Folder, fast: WorkerSettings
) -> None:
    class Shared(MortalEngine):
        """People's requests end it twice."""

        async def complete(self, *asked: Any) -> Answer:
            again = self.deaths == 1 and last_message(json.loads(asked[1])) in self.died_with
            if self.asked.total() == 12 or again:
                asyncio.get_running_loop().call_later(0.005, self.die)
            answer = await super().complete(*asked)
            return replace(answer, headers={**answer.headers, "x-skirret-load": "1,0,0.1"})

    engine = Shared(away=0.0)
    result = await ran(folder, engine, replace(fast, concurrency=4), 30)
    assert result.errors == {}
    assert engine.deaths == max(engine.died_with.values()) == 2


async def test_an_engine_that_dies_whatever_it_is_asked_pauses_the_batch(
    folder: Folder, fast: WorkerSettings
) -> None:
    left = 40

    async def script(request: Body) -> Answer | None:
        nonlocal left
        left -= 1
        return error_answer(502) if left >= 0 else None

    settings = replace(fast, rest_longest=0.01)
    assert (await ran(folder, FakeCompletions(script), settings, 5)).errors == {}


async def test_an_engine_that_breaks_for_good_keeps_the_lines_it_leaves(
    folder: Folder, fast: WorkerSettings
) -> None:
    async def script(request: Body) -> Answer | None:
        return completion(request) if engine.asked.total() <= 10 else error_answer(502)

    engine = FakeCompletions(script)
    batch_id = await submit(folder, *numbered(20))
    settings = replace(fast, rest_longest=0.01, concurrency=4)
    running = asyncio.create_task(Worker(folder, batch_id, engine, settings, slot="0").live())
    while engine.asked.total() < 150:
        await asyncio.sleep(0.01)
    counts = (await records.load(folder, batch_id))[0].batch.request_counts
    assert (counts.completed, counts.failed) == (10, 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_only_line_there_is_needs_no_other_for_comparison(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = MortalEngine("t000")
    assert (await ran(folder, engine, fast, 1)).errors == {"c0": 500}
    assert engine.deaths == 5


async def test_a_gateway_that_goes_is_no_lines_fault(folder: Folder, fast: WorkerSettings) -> None:
    left = 2

    async def script(request: Body) -> Answer | None:
        nonlocal left
        if engine.running == 8 and left:
            left -= 1
            raise Broken("connection reset")
        await asyncio.sleep(0.005)
        return None

    engine = FakeCompletions(script)
    assert (await ran(folder, engine, replace(fast, concurrency=8), 40)).errors == {}
    assert engine.most_running == 8  # nobody was asked alone


async def test_a_line_that_ends_every_gateway_is_set_aside(
    folder: Folder, fast: WorkerSettings
) -> None:
    async def script(request: Body) -> Answer | None:
        if request["messages"][-1]["content"] == "t003":
            raise Broken("connection reset")
        return None

    assert (await ran(folder, FakeCompletions(script), fast, 20)).errors == {"c3": 500}


def now_and_then(chance: random.Random) -> set[int]:
    """The requests during which an engine dies, all along a batch."""
    return set(accumulate(chance.randint(5, 35) for _ in range(200)))


# the rules


def accused(inquest: Inquest, deaths: int = 1) -> Work:
    """A line that was in flight with another, and then alone, when an engine died."""
    work, other = Work(0, 0), Work(1, 0)
    for each in (work, other):
        inquest.died(each, sent=1.0, now=2.0)
    for death in range(deaths):
        inquest.answered(other, 3.0 + death)
        inquest.died(work, sent=3.1 + death, now=3.2 + death)
    return work


def test_a_line_is_guilty_once_the_engine_has_lived_without_it() -> None:
    inquest = Inquest(shared=False)
    work = accused(inquest)
    assert inquest.verdict(work) == "ask another"
    assert inquest.another().ordinal == 1
    inquest.answered(inquest.another(), 9.0)
    assert inquest.verdict(work) == "guilty"


def test_a_line_whose_engine_has_other_users_is_asked_once_more() -> None:
    inquest = Inquest(shared=True)
    work = accused(inquest)
    inquest.answered(Work(2, 0), 9.0)
    assert inquest.verdict(work) == "once more"


@pytest.mark.parametrize("of_nobody", [0, 1, 2, 3, 9])
def test_each_death_of_nobody_asks_for_one_more(of_nobody: int) -> None:
    inquest = Inquest(shared=False)
    work = accused(inquest, deaths=1 + min(of_nobody, 3))
    for number in range(of_nobody):
        witness = Work(10 + number, 0)
        inquest.died(witness, sent=20.0 + number, now=20.1 + number)
        inquest.answered(witness, 20.2 + number)
    inquest.answered(Work(2, 0), 99.0)
    assert inquest.verdict(work) == "guilty"
    work.alone -= 1
    assert inquest.verdict(work) == "once more"


def test_deaths_without_a_sign_of_life_between_them_count_once() -> None:
    inquest = Inquest(shared=False)
    work = accused(inquest)
    for time in range(10, 20):
        inquest.died(work, sent=time, now=time + 0.5)
    assert work.alone == 1
