"""A worker that dies at any operation on its store, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from skirret_batch import files
from skirret_batch.completions import Answer
from skirret_batch.create_only import CreateOnly
from skirret_batch.folder import Folder
from skirret_batch.plan import Body
from skirret_batch.record import load
from skirret_batch.store import BatchStore
from skirret_batch.testing import (
    FakeCompletions,
    Killed,
    MortalStore,
    chat_line,
    error_answer,
    last_message,
    outcome,
    submit,
)
from skirret_batch.worker import Worker, WorkerSettings

TOTAL = 8
LINES = [chat_line(f"c{n}", f"t{n}") for n in range(TOTAL)]


async def script(request: Body) -> Answer | None:
    return error_answer(400) if last_message(request) == "t5" else None


@pytest.fixture
def settings(fast: WorkerSettings) -> WorkerSettings:
    """Several shards, several segments each, several parts of a file."""
    return replace(fast, shard_lines=4, flush_bytes=600, part_size=2048, concurrency=3, poll=0.05)


async def live_once(store: BatchStore, batch_id: str, settings: WorkerSettings) -> bool:
    """True when the worker came to the batch's end; False when it was killed."""
    try:
        await Worker(store, batch_id, FakeCompletions(script), settings, slot="0").live()
    except Killed:
        return False
    return True


async def check(store: BatchStore, batch_id: str) -> None:
    record, _ = await load(store, batch_id)
    result = await outcome(store, record)
    assert record.batch.status == "completed"
    assert [line["custom_id"] for line in result.output] == [
        f"c{n}" for n in range(TOTAL) if n != 5
    ]
    assert result.errors == {"c5": 400}
    counts = record.batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (TOTAL, TOTAL - 1, 1)
    assert record.batch.usage is not None
    assert record.batch.usage.output_tokens == 3 * (TOTAL - 1)
    batch = record.batch
    made = [batch.input_file_id, batch.output_file_id, batch.error_file_id]
    listed = [entry.key.split("/")[1] async for entry in store.list("files/")]
    assert sorted(listed) == sorted(2 * [file_id for file_id in made if file_id])
    assert [upload async for upload in store.uploads("files/")] == []
    for file_id in made:  # the next batch of this test finds an empty store
        if file_id is not None:
            await files.remove(store, file_id)


def itself(store: BatchStore) -> BatchStore:
    return store


@pytest.mark.parametrize(
    ("wrapped", "carried_out"),
    [(itself, False), (itself, True), (CreateOnly, True)],
    ids=["before", "after", "create-only-after"],
)
async def test_a_death_at_every_operation_costs_nothing(
    folder: Folder,
    settings: WorkerSettings,
    wrapped: Callable[[BatchStore], BatchStore],
    carried_out: bool,
) -> None:
    whole = wrapped(folder)
    dies_at = 0
    is_ended = False
    while not is_ended:
        dies_at += 1
        batch_id = await submit(whole, *LINES)
        mortal = wrapped(MortalStore(folder, dies_at, carried_out=carried_out))
        is_ended = await live_once(mortal, batch_id, settings)
        await live_once(whole, batch_id, settings)
        await check(whole, batch_id)
    assert dies_at > 30
    assert [entry async for entry in whole.list("live/")] == []


@pytest.mark.parametrize("seed", range(6))
async def test_a_worker_that_dies_again_and_again_gets_there(
    folder: Folder, settings: WorkerSettings, seed: int
) -> None:
    chance = random.Random(seed)
    batch_id = await submit(folder, *LINES)
    lives = 0
    is_ended = False
    while not is_ended:
        lives += 1
        dies_at = chance.randint(1, 12 + 3 * lives)
        mortal = MortalStore(folder, dies_at, carried_out=chance.random() < 0.5)
        is_ended = await live_once(mortal, batch_id, settings)
    await check(folder, batch_id)


@pytest.mark.parametrize("seed", range(4))
async def test_several_workers_that_die_at_random_get_there_together(
    folder: Folder, settings: WorkerSettings, seed: int
) -> None:
    chance = random.Random(seed)
    batch_id = await submit(folder, *LINES, parallelism=2)

    async def lives(slot: str) -> None:
        span = 10
        while True:
            span += 10
            mortal = MortalStore(folder, chance.randint(1, span), carried_out=chance.random() < 0.5)
            try:
                engine = FakeCompletions(script)
                await Worker(mortal, batch_id, engine, settings, slot=slot).live()
                return
            except Killed:
                continue

    await asyncio.gather(lives("0"), lives("1"))
    await check(folder, batch_id)
