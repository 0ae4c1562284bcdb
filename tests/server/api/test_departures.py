"""The time a refused client is told to wait."""

from __future__ import annotations

from skirret_server.api.departures import Departures


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def departing(every: float, count: int) -> tuple[Departures, Clock]:
    clock = Clock()
    departures = Departures(clock)
    for _ in range(count):
        departures.ended()
        clock.now += every
    return departures, clock


def test_the_first_refused_waits_until_one_has_ended() -> None:
    departures, _ = departing(every=4.0, count=5)
    assert departures.refused() == 4


def test_each_one_refused_waits_for_those_before() -> None:
    departures, _ = departing(every=0.5, count=20)
    waits = [departures.refused() for _ in range(12)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (1, 6)


def test_nobody_is_told_to_wait_so_long_that_clients_give_up() -> None:
    departures, _ = departing(every=10.0, count=2)
    assert max(departures.refused() for _ in range(50)) == 120


def test_what_is_long_ago_counts_no_more() -> None:
    departures, clock = departing(every=10.0, count=2)
    for _ in range(50):
        departures.refused()
    clock.now += 60
    assert departures.refused() == 1
    assert departures.refused() == 30
