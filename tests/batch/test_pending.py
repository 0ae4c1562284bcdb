"""Which line is next."""

from __future__ import annotations

from skirret_batch.worker.inquest import Death, Work
from skirret_batch.worker.pending import Pending


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


def test_a_suspect_goes_first_and_waits_until_it_can_be_alone() -> None:
    pending, (one, two) = Pending(), works(2)
    pending.add([one])
    two.deaths.append(Death())
    pending.suspect(two)
    assert pending.take(0, 1) is None
    assert pending.take(0, 0) is two


def test_an_accused_line_is_not_next_before_it_is_asked_for() -> None:
    pending, (one, two) = Pending(), works(2)
    pending.add([one])
    two.deaths, two.alone = [Death(), Death()], 1
    pending.suspect(two)
    assert [pending.take(0, 0), pending.take(0, 0)] == [one, None]
    assert (len(pending), pending.accused) == (0, 1)
    assert pending.take_accused() is two


def test_a_lost_shard_takes_its_lines_along() -> None:
    pending = Pending()
    pending.add([*works(2, shard=0), *works(2, shard=1)])
    pending.retry(Work(9, 0), 1.0)
    pending.suspect(Work(8, 0, deaths=[Death()]))
    pending.suspect(Work(7, 0, deaths=[Death()], alone=1))
    pending.drop(0)
    assert pending.accused == 0
    assert len(pending) == 2
    assert [work.shard for work in (pending.take(9, 0), pending.take(9, 0)) if work] == [1, 1]
