"""Nothing is written when nothing differs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from skirret_operator.reconcile.difference import covers, differs, stamped

plain = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=5),
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(plain)
def test_everything_covers_itself(value: Any) -> None:
    assert covers(value, value)


@given(some.dictionaries(some.text(max_size=3), plain, max_size=4), plain)
def test_what_a_default_adds_is_no_difference(value: dict[str, Any], added: Any) -> None:
    assert covers({**value, "added by a default": added}, value)


@pytest.mark.parametrize(
    ("live", "desired"),
    [
        ("1", "1000m"),
        ("1", 1),
        ("1Gi", "1024Mi"),
        ("500m", "0.5"),
        ("2k", "2000"),
        (None, False),
        (None, []),
        (None, {}),
        (None, ""),
        ([{"name": "a", "protocol": "TCP"}], [{"name": "a"}]),
        ([{"name": "injected"}, {"name": "ours"}], [{"name": "ours"}]),
    ],
)
def test_the_same_in_other_words_is_no_difference(live: Any, desired: Any) -> None:
    assert covers({"field": live}, {"field": desired})


@pytest.mark.parametrize(
    ("live", "desired"),
    [
        ("1Gi", "2Gi"),
        (1, 2),
        (None, "x"),
        (None, True),
        (["--a"], ["--a", "--b"]),
        (["--b", "--a"], ["--a", "--b"]),
        ([{"name": "a", "value": "1"}], [{"name": "a", "value": "2"}]),
        ([{"name": "a"}], [{"name": "a"}, {"name": "b"}]),
        ("text", {"a": "b"}),
    ],
)
def test_what_says_something_else_differs(live: Any, desired: Any) -> None:
    assert not covers({"field": live}, {"field": desired})


def test_a_field_we_no_longer_want_is_found_by_the_stamp() -> None:
    both = {"metadata": {"name": "x"}, "spec": {"a": 1, "b": 2}}
    one = {"metadata": {"name": "x"}, "spec": {"a": 1}}
    live = stamped(both)
    assert covers(live, one)
    assert differs(live, stamped(one))
