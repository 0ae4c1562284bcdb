from __future__ import annotations

from skirret_gateway.health import (
    ERRORS_IN_A_ROW,
    FIRST_PAUSE,
    GOOD,
    LONGEST_PAUSE,
    Health,
    Outcome,
    after,
    usable,
)
from skirret_gateway.table import Replica

A, B = Replica("a", 1), Replica("b", 1)


def seen(*outcomes: Outcome, now: float = 0.0) -> Health:
    health = GOOD
    for outcome in outcomes:
        health = after(health, outcome, now)
    return health


def fit(a: Health, b: Health = GOOD, *, now: float, loads: dict[Replica, int] | None = None) -> str:
    """The hosts that may have one more."""
    states = {A: a, B: b}
    return "".join(r.host for r in usable([A, B], states.__getitem__, loads or {}, now))


def test_a_server_that_can_not_be_reached_is_left_alone_for_a_while() -> None:
    health = seen(Outcome.UNREACHABLE)
    assert fit(health, now=FIRST_PAUSE - 0.01) == "b"
    assert fit(health, now=FIRST_PAUSE) == "ab"


def test_the_while_doubles_up_to_a_limit() -> None:
    assert seen(*[Outcome.UNREACHABLE] * 2).paused_until == 2 * FIRST_PAUSE
    assert seen(*[Outcome.UNREACHABLE] * 2000).paused_until == LONGEST_PAUSE


def test_after_it_one_request_tries() -> None:
    health = seen(Outcome.UNREACHABLE)
    assert fit(health, now=99, loads={A: 1}) == "b"


def test_trust_comes_back_slowly() -> None:
    health = seen(Outcome.UNREACHABLE, *[Outcome.ANSWERED] * 2)
    assert fit(health, now=99, loads={A: 3}) == "ab"
    assert fit(health, now=99, loads={A: 4}) == "b"


def test_trust_comes_back_whole() -> None:
    assert seen(Outcome.UNREACHABLE, *[Outcome.ANSWERED] * 6) is GOOD


def test_one_that_fails_its_try_is_left_alone_for_longer() -> None:
    health = after(seen(Outcome.UNREACHABLE), Outcome.UNREACHABLE, 10.0)
    assert health.paused_until == 10 + 2 * FIRST_PAUSE


def test_a_draining_server_is_left_alone_and_others_are_asked() -> None:
    assert fit(seen(Outcome.DRAINING), now=0.5) == "b"


def test_errors_in_a_row_pause_a_server() -> None:
    assert fit(seen(*[Outcome.SERVER_ERROR] * (ERRORS_IN_A_ROW - 1)), now=0) == "ab"
    assert fit(seen(*[Outcome.SERVER_ERROR] * ERRORS_IN_A_ROW), now=0) == "b"


def test_an_answer_between_two_errors_starts_the_count_anew() -> None:
    some = [Outcome.SERVER_ERROR] * (ERRORS_IN_A_ROW - 1)
    assert fit(seen(*some, Outcome.ANSWERED, *some), now=0) == "ab"


def test_when_every_server_answers_errors_they_are_asked_all_the_same() -> None:
    failing = seen(*[Outcome.SERVER_ERROR] * ERRORS_IN_A_ROW)
    assert fit(failing, failing, now=0) == "ab"


def test_when_no_server_can_be_reached_nobody_is_asked() -> None:
    gone = seen(Outcome.UNREACHABLE)
    assert fit(gone, gone, now=0) == ""


def test_a_client_that_leaves_says_nothing_of_the_server() -> None:
    assert seen(Outcome.UNKNOWN) is GOOD
