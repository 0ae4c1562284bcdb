"""What a person reads of a batch, and a server that comes and goes."""

from __future__ import annotations

import io
from typing import Any

import pytest

from skirret_cli.batches.api import Api, Away
from skirret_cli.batches.follow import Screen, follow
from skirret_cli.batches.words import bar, ending, is_whole, span

Json = dict[str, Any]


def batch(status: str = "in_progress", completed: int = 0, failed: int = 0, **more: Any) -> Json:
    counts = {"total": 1000, "completed": completed, "failed": failed}
    return {
        "id": "batch_1",
        "status": status,
        "created_at": 1000,
        "expires_at": 9000,
        "request_counts": counts,
        **more,
    }


def test_the_bar_says_lines_speed_eta_and_failures_in_one_line() -> None:
    progress = {"tokens_per_second": 1234.4, "eta_seconds": 200.2}
    assert bar(batch(completed=400, failed=12, x_progress=progress), 200) == (
        "in_progress  [#########---------------]  41%  412/1,000  1,234 tok/s  ETA 3m20s  12 failed"
    )
    assert bar(batch("validating"), 8) == "validati"[:8]


def test_the_ending_counts_what_was_not_run() -> None:
    ended = batch("expired", 10, 3, expired_at=1075, usage={"output_tokens": 5000})
    assert ending(ended) == (
        "expired: 10 of 1,000 lines answered, 3 failed, 987 not run, 5,000 tokens generated,"
        " in 1m15s"
    )
    assert not is_whole(ended)


def test_the_first_errors_are_told_and_the_rest_counted() -> None:
    errors = [{"line": n, "message": "bad", "code": "c"} for n in range(1, 15)]
    told = ending(batch("failed", failed_at=1001, errors={"data": errors})).splitlines()
    assert told[1] == "line 1: bad (c)"
    assert told[11] == "and 4 more: skirret batch show batch_1 --json"


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0s"), (59.6, "1m"), (3700, "1h1m"), (90000, "1d1h")]
)
def test_a_span_is_told_by_its_two_largest_units(seconds: float, told: str) -> None:
    assert span(seconds) == told


class Flaky(Api):
    """Answers what it is given, in order; an Away is raised."""

    def __init__(self, *answers: Json | Away) -> None:
        self._left = list(answers)

    def batch(self, batch_id: str) -> Json:
        answer = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        if isinstance(answer, Away):
            raise answer
        return answer


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def followed(api: Api) -> tuple[Json, str]:
    time, told = Time(), io.StringIO()
    return follow(api, "batch_1", Screen(told, time), time, time.sleep), told.getvalue()


def test_a_server_that_is_away_for_a_while_does_not_end_the_wait() -> None:
    away = [Away("nobody there")] * 30
    ended, told = followed(Flaky(batch(), *away, batch(), batch("completed", 1000)))
    assert ended["status"] == "completed"
    assert "nobody there; trying again" in told


def test_a_server_that_stays_away_ends_the_wait() -> None:
    with pytest.raises(Away, match="nobody there"):
        followed(Flaky(batch(), Away("nobody there")))
