"""Batches in the server's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from skirret_batch import record as records
from skirret_batch.embedded import Runner
from skirret_batch.folder import Folder
from skirret_batch.record import Record
from skirret_batch.store import BatchStore, StoreRefused
from skirret_batch.testing import FakeCompletions, Wrapped, chat_line, outcome, submit
from skirret_batch.worker import WorkerSettings


@asynccontextmanager
async def running(
    store: BatchStore, engine: FakeCompletions, settings: WorkerSettings
) -> AsyncIterator[Runner]:
    runner = Runner(store, engine, settings, look_every=0.05)
    task = asyncio.create_task(runner.run())
    yield runner
    runner.stop()
    await task


async def ended(store: BatchStore, batch_id: str) -> Record:
    async with asyncio.timeout(10):
        while True:
            record, _ = await records.load(store, batch_id)
            if record.is_terminal:
                return record
            await asyncio.sleep(0.01)


LINES = [chat_line(str(n), f"t{n:02}") for n in range(20)]


async def test_a_new_batch_is_begun_at_once(folder: Folder, fast: WorkerSettings) -> None:
    async with running(folder, FakeCompletions(), fast) as runner:
        batch_id = await submit(folder, *LINES)
        await runner.started(folder, batch_id)
        assert (await ended(folder, batch_id)).batch.status == "completed"


async def test_what_one_process_left_the_next_goes_on_with(
    folder: Folder, fast: WorkerSettings
) -> None:
    settings = replace(fast, stale_after=1000.0)
    batch_ids = [await submit(folder, *LINES) for _ in range(2)]
    slow = FakeCompletions(seconds=0.05)
    async with running(folder, slow, replace(settings, concurrency=2)):
        while slow.asked.total() < 8:
            await asyncio.sleep(0.01)
    quick = FakeCompletions()
    async with running(folder, quick, settings):
        for batch_id in batch_ids:
            record = await ended(folder, batch_id)
            assert len((await outcome(folder, record)).output) == 20
    assert quick.asked.total() < 40


async def test_two_processes_on_one_folder_do_no_harm(folder: Folder, fast: WorkerSettings) -> None:
    engine = FakeCompletions(seconds=0.005)
    async with running(folder, engine, fast), running(folder, engine, fast):
        batch_ids = [await submit(folder, *LINES) for _ in range(3)]
        for batch_id in batch_ids:
            record = await ended(folder, batch_id)
            assert (await outcome(folder, record)).ids == [str(n) for n in range(20)]


async def test_a_batch_whose_store_fails_is_tried_again(
    folder: Folder, fast: WorkerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    failures = 3

    async def fail(name: str, key: str) -> None:
        nonlocal failures
        if name == "put" and "plan.bin" in key and failures:
            failures -= 1
            raise StoreRefused("no space left")

    async def nothing(name: str, key: str) -> None:
        return

    async with running(Wrapped(folder, fail, nothing), FakeCompletions(), fast):
        batch_id = await submit(folder, *LINES)
        assert (await ended(folder, batch_id)).batch.status == "completed"
    assert "no space left" in caplog.text
