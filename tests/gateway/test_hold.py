from __future__ import annotations

import pytest

from skirret_gateway.hold import Full, HoldLimits, HoldQueue
from skirret_gateway.table import ModelId

M, N = ModelId("here", "m"), ModelId("here", "n")


def queue(requests: int = 10, size: int = 1000, per_model: int = 5) -> HoldQueue[object]:
    return HoldQueue(HoldLimits(requests, size, per_model))


def test_the_first_that_came_is_the_first() -> None:
    held = queue()
    held.push(M, "one", 1)
    held.push(M, "two", 1)
    assert held.first(M) == "one"
    assert held.remove(M, "one")
    assert held.first(M) == "two"


def test_one_that_comes_back_is_first_again() -> None:
    held = queue()
    held.push(M, "two", 1)
    held.push(M, "one", 1, first=True)
    assert held.first(M) == "one"


def test_models_wait_in_lines_of_their_own() -> None:
    held = queue()
    held.push(M, "one", 1)
    held.push(N, "two", 1)
    assert held.first(N) == "two"
    assert held.models == [M, N]


def test_a_models_line_is_bounded() -> None:
    held = queue(per_model=1)
    held.push(M, "one", 1)
    with pytest.raises(Full):
        held.push(M, "two", 1)
    held.push(N, "two", 1)


def test_all_lines_together_are_bounded() -> None:
    held = queue(requests=1)
    held.push(M, "one", 1)
    with pytest.raises(Full):
        held.push(N, "two", 1)


def test_the_bytes_that_wait_are_bounded() -> None:
    held = queue(size=10)
    held.push(M, "one", 8)
    with pytest.raises(Full):
        held.push(N, "two", 3)


def test_who_leaves_makes_room() -> None:
    held = queue(requests=1, size=10)
    held.push(M, "one", 10)
    held.remove(M, "one")
    held.push(M, "two", 10)
    assert held.count(M) == 1


def test_who_is_not_there_can_not_leave() -> None:
    assert not queue().remove(M, "one")
