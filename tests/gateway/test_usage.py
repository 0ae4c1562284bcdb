"""Usage is summed over gateways through the store, and survives their restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from skirret_api.tenants import FolderStore
from skirret_batch.folder import Folder
from skirret_batch.store import BatchStore, StoreUnavailable
from skirret_gateway.ledger import Ledger
from skirret_gateway.usage import Tokens, Usage, parse

DAY = "2026-01-01"
DAWN = 1767225600.0


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    return Folder(FolderStore(path=str(tmp_path)), durable=False)


class Unit:
    """A gateway, as far as it counts."""

    def __init__(self, name: str, store: Callable[[str], BatchStore]) -> None:
        self.now = DAWN
        self.usage = Usage(DAY)
        self.ledger = Ledger(
            self.usage, store, lambda: ["team"], name, clock=lambda: self.now, sleep=self._sleep
        )

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def count(self, total: int, key: str = "ann") -> None:
        self.usage.add("team", key, "team/m", Tokens(prompt=total))

    def total(self, key: str = "ann") -> int:
        return self.usage.tokens("team", key)


async def test_every_gateway_knows_what_all_counted(store: BatchStore) -> None:
    a, b = (Unit(name, lambda _: store) for name in "ab")
    for unit in (a, b):
        await unit.ledger.read()
    for amount in (1, 10):
        a.count(amount)
        b.count(amount * 100)
        for unit in (a, b):
            await unit.ledger.write()
        for unit in (a, b):
            await unit.ledger.read()
    assert a.total() == b.total() == 1111
    assert a.usage.by_model("team", "ann")["team/m"].requests == 4


async def test_a_gateway_that_is_started_anew_goes_on_counting(store: BatchStore) -> None:
    before = Unit("a", lambda _: store)
    await before.ledger.read()
    before.count(5)
    await before.ledger.write()
    after = Unit("a", lambda _: store)
    after.count(2)
    await after.ledger.write()  # must not overwrite what it hasn't read
    await after.ledger.read()
    assert after.total() == 7
    await after.ledger.write()
    other = Unit("b", lambda _: store)
    await other.ledger.read()
    assert other.total() == 7


async def test_the_ledger_is_written_and_read_while_it_runs(store: BatchStore) -> None:
    a, b = (Unit(name, lambda _: store) for name in "ab")
    running = [asyncio.ensure_future(unit.ledger.run()) for unit in (a, b)]
    a.count(3)
    async with asyncio.timeout(10):
        while b.total() != 3:
            await asyncio.sleep(0.001)
    await _end(running)


async def test_a_new_day_begins_with_nothing(store: BatchStore) -> None:
    a = Unit("a", lambda _: store)
    running = asyncio.ensure_future(a.ledger.run())
    a.count(3)
    async with asyncio.timeout(10):
        while (await _names(store)) != [f"usage/{DAY}/a.json"]:
            await asyncio.sleep(0.001)
    a.now = DAWN + 86_400
    async with asyncio.timeout(10):
        while a.total():
            await asyncio.sleep(0.001)
    assert a.usage.day == "2026-01-02"
    await _end([running])


async def test_a_store_that_is_away_costs_nothing_but_time(store: BatchStore) -> None:
    is_away = True

    def place(namespace: str) -> BatchStore:
        if is_away:
            raise StoreUnavailable("away")
        return store

    a = Unit("a", place)
    a.count(3)
    await a.ledger.read()
    await a.ledger.write()
    is_away = False
    await a.ledger.read()
    await a.ledger.write()
    b = Unit("b", place)
    await b.ledger.read()
    assert b.total() == 3


async def test_a_file_that_makes_no_sense_counts_for_nothing(store: BatchStore) -> None:
    await store.put(f"usage/{DAY}/b.json", b'{"ann": 3}')
    a = Unit("a", lambda _: store)
    await a.ledger.read()
    assert a.total() == 0


@pytest.mark.parametrize("text", [b"", b"1,2", b"1,2,x", b"1,2,3,4", b"-1,0,0"])
def test_what_is_no_usage_is_not_taken_for_one(text: bytes) -> None:
    assert parse(text) is None


async def _names(store: BatchStore) -> list[str]:
    return [entry.key async for entry in store.list("usage/")]


async def _end(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
