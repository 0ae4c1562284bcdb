"""Whole batches on a store that fails, stalls, and goes away, by workers whose clocks disagree."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import httpx2
import pytest
from aiohttp import web

from skirret_api.tenants import S3Store
from skirret_batch.bucket import Bucket
from skirret_batch.http import files_and_batches
from skirret_batch.record import Record
from skirret_batch.s3 import S3
from skirret_batch.store import BatchStore, Retries
from skirret_batch.testing import FakeCompletions, chat_line, outcome, submit
from skirret_batch.testing.network import FAULTS, Spoiler
from skirret_batch.worker import Worker, WorkerSettings

pytestmark = pytest.mark.s3

TOTAL = 200
LINES = [chat_line(f"c{n}", f"t{n:03}") for n in range(TOTAL)]
RETRIES = Retries(seconds=30, silence=0.3, first_pause=0.005, longest_pause=0.1)
SKEW = 600.0  # seconds


class Way:
    """Stores behind one spoiled network, each for a process with a clock of its own."""

    def __init__(self, settings: S3Store) -> None:
        self._settings = settings
        self._open: list[BatchStore] = []

    def store(self, ahead: float = 0.0, retries: Retries = RETRIES) -> BatchStore:
        s3 = S3(self._settings, retries, clock=ahead_by(ahead))
        self._open.append(Bucket(s3))
        return self._open[-1]

    async def close(self) -> None:
        for store in self._open:
            await store.close()


@pytest.fixture
async def way(bucket: S3Store, spoiler: tuple[Spoiler, str]) -> AsyncIterator[Way]:
    prefix = f"faults-{uuid4().hex}"
    way = Way(bucket.model_copy(update={"endpoint": spoiler[1], "prefix": prefix}))
    yield way
    spoiler[0].fault = lambda request: ""
    await way.close()


def ahead_by(seconds: float) -> Callable[[], float]:
    return lambda: time.time() + seconds


async def check(store: BatchStore, record: Record, total: int = TOTAL) -> None:
    result = await outcome(store, record)
    assert [line["custom_id"] for line in result.output] == [f"c{n}" for n in range(total)]
    assert result.error == []
    assert record.batch.status == "completed"
    counts = record.batch.request_counts.model_dump()
    assert counts == {"total": total, "completed": total, "failed": 0}
    assert [upload async for upload in store.uploads("")] == []


@pytest.mark.parametrize("ignored", ["", "If-Match"], ids=["compares", "creates"])
async def test_a_batch_on_a_store_that_fails_three_times_in_ten(
    way: Way, spoiler: tuple[Spoiler, str], fast: WorkerSettings, ignored: str
) -> None:
    seed = random.randrange(1_000_000)
    print(f"\nseed {seed}")
    chance = random.Random(seed)
    network = spoiler[0]
    network.ignored = ignored
    network.stall = 0.5
    network.fault = lambda request: chance.choice(FAULTS) if chance.random() < 0.3 else ""
    batch_id = await submit(way.store(), *LINES, parallelism=2)
    engine = FakeCompletions(seconds=0.02)
    settings = replace(
        fast, concurrency=8, shard_lines=30, stale_after=5.0, renew_after=1.0, poll=0.1
    )
    lives = [
        Worker(
            way.store(ahead), batch_id, engine, settings, slot=slot, clock=ahead_by(ahead)
        ).live()
        for slot, ahead in (("0", SKEW), ("1", -SKEW))
    ]
    record, _ = await asyncio.gather(*lives)
    await check(way.store(), record)
    assert network.requests > 100


async def test_a_store_that_goes_away_in_the_middle_costs_no_line(
    way: Way, spoiler: tuple[Spoiler, str], fast: WorkerSettings
) -> None:
    settings = replace(
        fast, concurrency=8, shard_lines=30, stale_after=1.0, renew_after=0.25, poll=0.1
    )
    asked = await go_away(way, spoiler[0], settings, seconds=3.0)
    assert asked <= TOTAL + 2 * 8  # what was in flight


@pytest.mark.full
async def test_a_store_that_goes_away_for_half_a_minute_costs_no_line(
    way: Way, spoiler: tuple[Spoiler, str]
) -> None:
    settings = WorkerSettings(concurrency=4, shard_lines=30)
    patient = Retries(seconds=300.0, longest_pause=10.0)  # the worker's own
    asked = await go_away(way, spoiler[0], settings, seconds=35.0, retries=patient)
    print(f"\n{asked} asked of {TOTAL}")
    assert asked <= TOTAL + 2 * 4


async def go_away(
    way: Way,
    network: Spoiler,
    settings: WorkerSettings,
    seconds: float,
    retries: Retries = RETRIES,
) -> int:
    """How many lines were asked, by two workers whose leases all ran out meanwhile."""
    batch_id = await submit(way.store(), *LINES, parallelism=2)
    engine = FakeCompletions(seconds=0.1)
    lives = [
        asyncio.create_task(
            Worker(way.store(retries=retries), batch_id, engine, settings, slot=slot).live()
        )
        for slot in ("0", "1")
    ]
    while engine.asked.total() < TOTAL // 3:
        await asyncio.sleep(0.01)
    network.fault = lambda request: "cut before"
    await asyncio.sleep(seconds)
    network.fault = lambda request: ""
    record = (await asyncio.gather(*lives))[0]
    await check(way.store(), record)
    return engine.asked.total()


@asynccontextmanager
async def api(store: BatchStore) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=files_and_batches(lambda scope: store))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


async def test_a_store_that_is_away_is_told_with_its_reason(
    way: Way, spoiler: tuple[Spoiler, str]
) -> None:
    faults: list[Callable[[web.Request], str]] = [lambda request: "slow down", lambda request: ""]
    store = way.store(retries=replace(RETRIES, seconds=0.2))
    async with api(store) as http:
        await http.get("/v1/files")
        spoiler[0].fault = faults[0]
        answer = await http.get("/v1/batches")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) <= 120
        assert "Slow down" in answer.json()["error"]["message"]
        assert "tests" in answer.json()["error"]["message"]  # the bucket
        spoiler[0].fault = faults[1]
        assert (await http.get("/v1/batches")).json()["data"] == []
