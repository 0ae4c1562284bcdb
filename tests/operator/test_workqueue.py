"""The queue of keys."""

from __future__ import annotations

import asyncio

import pytest

from skirret_operator.workqueue import WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock)


async def is_empty(queue: WorkQueue[str]) -> bool:
    """Whether nothing is ready now."""
    try:
        async with asyncio.timeout(0.01):
            key = await queue.take()
    except TimeoutError:
        return True
    queue.done(key)
    queue.add(key)
    return False


async def test_many_events_are_one_piece_of_work(queue: WorkQueue[str]) -> None:
    for _ in range(50):
        queue.add("a")
    assert await queue.take() == "a"
    queue.done("a")
    assert await is_empty(queue)


async def test_keys_come_in_the_order_they_arrived(queue: WorkQueue[str]) -> None:
    for key in "abca":
        queue.add(key)
    assert [await queue.take() for _ in range(3)] == ["a", "b", "c"]


async def test_a_key_added_while_it_is_worked_on_comes_again_and_not_at_once(
    queue: WorkQueue[str],
) -> None:
    queue.add("a")
    await queue.take()
    queue.add("a")
    queue.add("a")
    assert await is_empty(queue)
    queue.done("a")
    assert await queue.take() == "a"
    queue.done("a")
    assert await is_empty(queue)


async def test_a_delayed_key_comes_when_it_is_due(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 5)
    assert await is_empty(queue)
    clock.now = 5.0
    assert await queue.take() == "a"


async def test_the_earliest_of_two_delays_counts(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 5)
    queue.add_after("a", 1)
    queue.add_after("a", 9)
    clock.now = 1.0
    assert await queue.take() == "a"
    queue.done("a")
    clock.now = 20.0
    assert await is_empty(queue)


async def test_an_event_makes_a_delay_void(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add_after("a", 5)
    queue.add("a")
    assert await queue.take() == "a"
    queue.done("a")
    clock.now = 6.0
    assert await is_empty(queue)


async def test_failures_in_a_row_double_the_pause(queue: WorkQueue[str], clock: Clock) -> None:
    for pause in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0):
        queue.retry("a")
        clock.now += pause - 0.01
        assert await is_empty(queue)
        clock.now += 0.02
        assert await queue.take() == "a"
        queue.done("a")


async def test_success_makes_the_next_failure_the_first(
    queue: WorkQueue[str], clock: Clock
) -> None:
    for _ in range(8):
        queue.retry("a")
        clock.now += 100
        await queue.take()
        queue.done("a")
    queue.forget("a")
    queue.retry("a")
    clock.now += 0.1
    assert await queue.take() == "a"


async def test_a_waiting_worker_is_woken(queue: WorkQueue[str]) -> None:
    waiting = [asyncio.create_task(queue.take()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.add("b")
    assert {await each for each in waiting} == {"a", "b"}
