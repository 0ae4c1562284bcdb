"""Leases and fences: whose results count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skirret_batch.folder import Folder
from skirret_batch.lines import Result, Usage
from skirret_batch.plan import Plan
from skirret_batch.store import BatchStore
from skirret_batch.testing import Wrapped
from skirret_batch.worker import WorkerSettings
from skirret_batch.worker.shard import FINAL, Board, Fenced, Holder, Shard

PLAN = Plan("m", order=[2, 0, 1, 3, 4], ends=[3, 5])
SETTINGS = WorkerSettings(renew_after=10.0, stale_after=30.0, flush_after=4.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def board(store: BatchStore, clock: Clock, slot: str, worker: str = "w1") -> Board:
    return Board(store, "b", PLAN, Holder(slot=slot, worker=worker), SETTINGS, clock)


async def claimed(board: Board) -> Shard:
    shard = await board.claim()
    assert shard is not None
    return shard


def result(ordinal: int, ok: bool = True) -> Result:
    return Result(ordinal, ok, b"line %d\n" % ordinal, Usage(10, 4, 2))


async def test_shards_are_claimed_one_by_one_and_once(store: BatchStore, clock: Clock) -> None:
    one, two = board(store, clock, "0"), board(store, clock, "1")
    first, second = await claimed(one), await claimed(two)
    assert [*first.remaining, *second.remaining] == PLAN.order
    assert await one.claim() is None
    assert await two.claim() is None


async def test_a_committed_result_counts_and_is_not_asked_again(
    store: BatchStore, clock: Clock
) -> None:
    one = board(store, clock, "0")
    shard = await claimed(one)
    shard.add(result(2))
    shard.add(result(1, ok=False))
    await shard.commit()
    next_one = board(store, clock, "0", "w2")
    assert (await claimed(next_one)).remaining == [0]
    tally = next_one.tally()
    assert (tally.completed, tally.failed, tally.usage) == (1, 1, Usage(20, 8, 4))


async def test_whoever_lost_its_shard_commits_nothing_more(store: BatchStore, clock: Clock) -> None:
    shard = await claimed(board(store, clock, "0"))
    shard.add(result(2))
    taken = await claimed(board(store, clock, "0", "w2"))
    taken.add(result(0))
    await taken.commit()

    for late in (shard.commit, shard.release):
        with pytest.raises(Fenced):
            await late()
    shard.add(result(1))
    with pytest.raises(Fenced):
        await shard.commit()

    last = board(store, clock, "1")
    manifest = (await last.seal())[0]
    assert [segment.lines for segment in manifest.segments] == [[0]]
    assert manifest.epoch == 3


async def test_what_is_sealed_stays_as_it_is(store: BatchStore, clock: Clock) -> None:
    shard = await claimed(board(store, clock, "0"))
    shard.add(result(2))
    manifests = await board(store, clock, "1").seal()
    with pytest.raises(Fenced):
        await shard.commit()
    assert [manifest.done for manifest in manifests.values()] == [0, 0]
    newcomer = board(store, clock, "2")
    assert await newcomer.claim() is None
    assert newcomer.is_over
    assert await newcomer.seal() == manifests


async def test_a_shard_without_a_sign_of_life_is_taken_after_a_while(
    store: BatchStore, clock: Clock
) -> None:
    shard = await claimed(board(store, clock, "0"))
    other = board(store, clock, "1")
    await claimed(other)
    assert await other.claim() is None
    clock.now += 29
    await shard.tend()  # renews: more than ten seconds have passed
    assert await other.claim() is None
    clock.now += 29
    assert await other.claim() is None
    clock.now += 2
    assert await other.claim() is not None


async def test_silence_does_not_count_while_the_store_is_away(folder: Folder, clock: Clock) -> None:
    outage = 0.0

    async def wait(name: str, key: str) -> None:
        clock.now += outage if name == "list" else 0.0

    async def nothing(name: str, key: str) -> None:
        return

    shard = await claimed(board(folder, clock, "0"))
    other = board(Wrapped(folder, wait, nothing), clock, "1")
    await claimed(other)
    outage = 60.0
    assert await other.claim() is None
    outage = 0.0
    clock.now += 29
    assert await other.claim() is None
    clock.now += 2
    assert (await claimed(other)).number == shard.number


async def test_a_replacement_takes_over_at_once_but_only_what_it_found_at_its_start(
    store: BatchStore, clock: Clock
) -> None:
    dead = board(store, clock, "0", "w1")
    await claimed(dead)
    replacement = board(store, clock, "0", "w2")
    assert (await claimed(replacement)).number == 0
    await claimed(dead)  # it wasn't dead, and takes the other shard
    assert await replacement.claim() is None


async def test_a_replacement_does_not_wait_for_a_lease_that_was_renewed_under_its_eyes(
    store: BatchStore, clock: Clock
) -> None:
    leaving = await claimed(board(store, clock, "0", "w1"))
    replacement = board(store, clock, "0", "w2")
    await replacement.look()
    clock.now += SETTINGS.renew_after
    await leaving.tend()
    assert (await claimed(replacement)).number == 0


async def test_a_released_shard_is_anybodys(store: BatchStore, clock: Clock) -> None:
    shard = await claimed(board(store, clock, "0"))
    await shard.release()
    assert (await claimed(board(store, clock, "1"))).number == shard.number


async def test_results_wait_for_company_but_not_long(store: BatchStore, clock: Clock) -> None:
    shard = await claimed(board(store, clock, "0"))
    shard.add(result(2))
    assert not await shard.tend()
    clock.now += 4
    assert await shard.tend()
    shard.add(result(0))
    shard.add(result(1))
    assert await shard.tend()  # nothing more can come
    assert shard.is_over


async def test_many_bytes_do_not_wait(store: BatchStore, clock: Clock) -> None:
    settings = replace(SETTINGS, flush_bytes=10)
    holder = Holder(slot="0", worker="w")
    shard = await claimed(Board(store, "b", PLAN, holder, settings, clock))
    shard.add(result(2))
    assert not await shard.tend()
    shard.add(result(0))
    assert await shard.tend()
    assert shard.buffered == 0


async def test_a_line_has_one_result(store: BatchStore, clock: Clock) -> None:
    shard = await claimed(board(store, clock, "0"))
    for ordinal in (2, 2, 0, 4):  # 4 is another shard's
        shard.add(result(ordinal))
    await shard.commit()
    assert [segment.lines for segment in shard.manifest.segments] == [[2, 0]]


async def test_one_worker_publishes_at_a_time(store: BatchStore, clock: Clock) -> None:
    one, two = board(store, clock, "0"), board(store, clock, "1")
    lease = await one.claim_right(FINAL)
    assert lease is not None
    assert await two.claim_right(FINAL) is None
    clock.now += 31
    assert await two.claim_right(FINAL) is not None
    clock.now += 11
    with pytest.raises(Fenced):
        await lease.tend()
