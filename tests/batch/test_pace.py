"""How many requests a worker has in flight, by what it hears back."""

from __future__ import annotations

from skirret_batch.completions import Load
from skirret_batch.worker.pace import Pace

FREE, FULL, CROWDED = Load(4, 0, 0.1), Load(8, 2, 0.9), Load(8, 40, 0.9)


def round_of_answers(pace: Pace, now: float, load: Load | None, seconds: float = 1.0) -> float:
    for _ in range(pace.room(now)):
        pace.answered(now + seconds, seconds, 10, load)
    return now + seconds


def test_it_doubles_each_round_until_the_most() -> None:
    pace, now, rooms = Pace(400), 0.0, []
    for _ in range(5):
        rooms.append(pace.room(now))
        now = round_of_answers(pace, now, FREE)
    assert rooms == [32, 64, 128, 256, 400]


def test_it_stands_still_while_requests_wait_in_the_server() -> None:
    pace = Pace(50)
    now = round_of_answers(pace, 0.0, FULL)
    assert pace.room(now) == 32


def test_it_grows_by_one_a_round_once_the_server_was_full() -> None:
    pace = Pace(50)
    now = round_of_answers(pace, 0.0, FULL)
    now = round_of_answers(pace, now, FREE)
    assert 32 <= pace.room(now) <= 33


def test_it_gives_way_once_a_round_when_a_crowd_comes() -> None:
    pace, now = Pace(100), 0.0
    for _ in range(4):
        now = round_of_answers(pace, now, FREE)
    before = pace.room(now)
    now = round_of_answers(pace, now, CROWDED)
    assert pace.room(now) == int(before * 0.9)


def test_429_halves_once_and_rests_as_long_as_it_says() -> None:
    pace, now = Pace(100), 0.0
    for _ in range(2):
        now = round_of_answers(pace, now, FREE)
    sent = now
    for _ in range(10):
        pace.refused(now + 0.1, sent, 3.0)
    assert pace.room(now + 2) == 0
    assert pace.room(now + 3.2) == 50


def test_a_server_that_is_away_is_asked_by_one_with_growing_pauses() -> None:
    pace, now, pauses = Pace(100), 0.0, []
    for _ in range(8):
        pace.away(now, now, None)
        pauses.append(pace.wait(now))
        now += pauses[-1]
        assert pace.room(now) == 1
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10.0


def test_a_server_that_is_back_gets_half_of_what_it_carried_at_once() -> None:
    pace, now = Pace(1000), 0.0
    for _ in range(3):
        now = round_of_answers(pace, now, FREE)
    carried = pace.room(now)
    for _ in range(3):
        pace.away(now, now, None)
        now += pace.wait(now)
    pace.answered(now + 1, 1, 10, FREE)
    assert pace.room(now + 1) == carried // 2 + 1


def test_many_requests_cut_at_once_are_one_absence() -> None:
    pace = Pace(100)
    for _ in range(50):
        pace.away(10.0, 9.0, None)
    assert pace.wait(10.0) == 0.5


def test_it_does_not_grow_while_answers_are_slow_unless_the_server_says_it_is_free() -> None:
    pace = Pace(500)
    now = round_of_answers(pace, 0.0, None, seconds=1.0)
    now = round_of_answers(pace, now, None, seconds=9.0)
    assert pace.room(now) == 64
    now = round_of_answers(pace, now, FREE, seconds=9.0)
    assert pace.room(now) == 128
