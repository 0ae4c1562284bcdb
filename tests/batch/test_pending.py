"""Which line is next."""

from __future__ import annotations

from skirret_batch.worker.pending import Pending, Work


def works(count: int, shard: int = 0) -> list[Work]:
    return [Work(ordinal, shard) for ordinal in range(count)]


def test_lines_come_in_the_plans_order() -> None:
    pending, given = Pending(), works(3)
    pending.add(given)
    assert [pending.take(0, 0) for _ in range(4)] == [*given, None]


def test_a_line_that_was_not_carried_out_is_the_next_again() -> None:
    pending = Pending()
    pending.add(works(3))
    first = pending.take(0, 0)
    assert first is not None
    pending.put_back(first)
    assert pending.take(0, 0) is first


def test_a_retry_waits_for_its_time_and_then_goes_first() -> None:
    pending, (one, two) = Pending(), works(2)
    pending.add([two])
    pending.retry(one, at=5.0)
    assert pending.wait(1.0) == 4.0
    assert pending.take(6.0, 0) is one


def test_suspects_go_before_the_rest() -> None:
    pending, (one, two) = Pending(), works(2)
    pending.add([one])
    two.deaths = 1
    pending.suspect(two)
    assert pending.take(0, 5) is two


def test_a_line_that_saw_two_deaths_waits_until_it_can_be_alone() -> None:
    pending, (one, two) = Pending(), works(2)
    pending.add([one])
    two.deaths = 2
    pending.suspect(two)
    assert pending.take(0, 1) is None
    assert pending.take(0, 0) is two


def test_a_lost_shard_takes_its_lines_along() -> None:
    pending = Pending()
    pending.add([*works(2, shard=0), *works(2, shard=1)])
    pending.retry(Work(9, 0), 1.0)
    pending.suspect(Work(8, 0, deaths=1))
    pending.drop(0)
    assert len(pending) == 2
    assert [work.shard for work in (pending.take(9, 0), pending.take(9, 0)) if work] == [1, 1]
