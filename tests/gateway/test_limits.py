"""Limits of keys: what fits, when it fits again, and how gateways share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skirret_api.errors import Overloaded
from skirret_api.tenants import ApiKey
from skirret_gateway.limits import Share, Used, Window, check, headers


def key(**limits: Any) -> ApiKey:
    return ApiKey(sha256="0" * 64, namespace="team", **limits)


def refusal(of: ApiKey, used: Used, **given: Any) -> Overloaded | None:
    asked: dict[str, Any] = {
        "today": 0,
        "share": Share(),
        "tokens": 1,
        "is_stream": False,
        "now": 0.0,
    }
    try:
        check(of, used, **{**asked, **given})
    except Overloaded as error:
        return error
    return None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(-5, 20))), st.integers(1, 50))
def test_a_window_counts_like_its_naive_twin(uses: list[tuple[int, int]], limit: int) -> None:
    window, now, log = Window(), 0.0, list[tuple[float, int]]()
    for pause, amount in uses:
        now += pause
        window.add(amount, now)
        log.append((now, amount))
        assert window.used(now) == sum(amount for at, amount in log if at > now - 60)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=20))
def test_what_a_window_says_will_fit_fits_then_and_not_a_second_before(
    uses: list[tuple[int, int]],
) -> None:
    window, now = Window(), 0.0
    for pause, amount in uses:
        now += pause
        window.add(amount, now)
    wait = window.wait(30, 10, now)
    if wait > 1:
        assert window.wait(30, 10, now + wait - 1) > 0
    assert window.wait(30, 10, now + wait) == 0


@given(st.integers(1, 1000), st.integers(1, 20))
def test_shares_add_up_to_the_limit_when_each_can_have_one(limit: int, units: int) -> None:
    shares = [Share(index, units).of(limit) for index in range(units)]
    assert sum(shares) == max(limit, units)
    assert max(shares) - min(shares) <= 1


def test_a_request_over_the_limit_is_told_when_it_fits() -> None:
    limited, used = key(requestsPerMinute=2), Used()
    for now in (0.0, 10.0):
        assert refusal(limited, used, now=now) is None
        used.requests.add(1, now)
    refused = refusal(limited, used, now=20.0)
    assert refused is not None
    assert (refused.status, refused.headers["retry-after"]) == (429, "40")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refusal(limited, used, now=60.0) is None


def test_tokens_are_limited_by_the_minute() -> None:
    limited, used = key(tokensPerMinute=100), Used()
    used.tokens.add(90, 0.0)
    assert refusal(limited, used, tokens=10) is None
    assert refusal(limited, used, tokens=11) is not None


def test_a_request_larger_than_the_limit_may_go_alone() -> None:
    limited, used = key(tokensPerMinute=100), Used()
    assert refusal(limited, used, tokens=5000) is None
    used.tokens.add(5000, 0.0)
    assert refusal(limited, used, tokens=1) is not None


def test_streams_at_once_are_limited_and_plain_requests_are_not() -> None:
    limited, used = key(streams=1), Used(streams=1)
    assert refusal(limited, used, is_stream=True) is not None
    assert refusal(limited, used, is_stream=False) is None


def test_a_quota_that_is_used_up_is_not_worth_trying_again() -> None:
    refused = refusal(key(tokensPerDay=1000), Used(), today=1000)
    assert refused is not None
    assert (refused.code, refused.headers["x-should-retry"]) == ("insufficient_quota", "false")
    assert refusal(key(tokensPerDay=1000), Used(), today=999) is None


def test_a_share_is_what_is_enforced_and_told() -> None:
    limited, used, share = key(requestsPerMinute=5), Used(), Share(0, 2)
    used.requests.add(3, 0.0)
    refused = refusal(limited, used, share=share)
    assert refused is not None
    assert "2 gateways" in refused.message
    assert headers(limited, used, share, 0.0)["x-ratelimit-limit-requests"] == "3"


@pytest.mark.parametrize(
    "limit", ["requestsPerMinute", "tokensPerMinute", "tokensPerDay", "streams"]
)
def test_a_limit_of_nothing_is_no_limit(limit: str) -> None:
    with pytest.raises(ValueError, match=limit):
        key(**{limit: 0})
