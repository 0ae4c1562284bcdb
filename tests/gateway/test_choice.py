from __future__ import annotations

from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from skirret_gateway.choice import OVERLOAD, choose, least_loaded, prefix_hash
from skirret_gateway.table import Replica

_FLEETS = st.integers(2, 12).map(lambda n: [Replica(f"10.0.0.{i}", 30000) for i in range(n)])
_HEADS = st.binary(min_size=1, max_size=20)


def heads(count: int) -> list[bytes]:
    return [b"prompt %d" % i for i in range(count)]


def test_round_robin_takes_everybody_in_turn() -> None:
    replicas = [Replica(f"s{i}", 1) for i in range(3)]
    chosen = [choose("RoundRobin", replicas, {}, b"same", turn) for turn in range(6)]
    assert chosen == replicas * 2


@given(_FLEETS, st.data())
def test_the_least_loaded_has_no_more_than_any_other(
    replicas: list[Replica], data: st.DataObject
) -> None:
    loads = {replica: data.draw(st.integers(0, 5)) for replica in replicas}
    chosen = least_loaded(replicas, loads, data.draw(st.integers(0, 100)))
    assert loads[chosen] == min(loads.values())


def test_equally_loaded_servers_take_turns() -> None:
    replicas = [Replica(f"s{i}", 1) for i in range(3)]
    assert {choose("LeastLoaded", replicas, {}, b"", turn) for turn in range(3)} == set(replicas)


@given(_FLEETS, _HEADS)
def test_equal_heads_meet(replicas: list[Replica], head: bytes) -> None:
    idle: dict[Replica, int] = {}
    chosen = prefix_hash(replicas, idle, head)
    assert prefix_hash(list(reversed(replicas)), idle, head) == chosen


@given(_FLEETS, _HEADS, st.integers(1, 200))
def test_no_server_gets_more_than_its_bound_however_hot_a_head_is(
    replicas: list[Replica], head: bytes, requests: int
) -> None:
    loads: Counter[Replica] = Counter()
    for _ in range(requests):
        loads[prefix_hash(replicas, loads, head)] += 1
    assert max(loads.values()) <= ceil(OVERLOAD * requests / len(replicas))


def test_heads_spread_evenly() -> None:
    replicas = [Replica(f"10.0.0.{i}", 30000) for i in range(8)]
    shares = Counter(prefix_hash(replicas, {}, head) for head in heads(8000))
    assert min(shares.values()) > 800
    assert max(shares.values()) < 1200


def test_a_server_that_goes_moves_only_its_own_heads() -> None:
    before = [Replica(f"10.0.0.{i}", 30000) for i in range(8)]
    gone = before[3]
    after = [replica for replica in before if replica != gone]
    for head in heads(500):
        was = prefix_hash(before, {}, head)
        if was != gone:
            assert prefix_hash(after, {}, head) == was


def test_a_server_that_comes_takes_its_share_and_moves_nothing_else() -> None:
    before = [Replica(f"10.0.0.{i}", 30000) for i in range(7)]
    new = Replica("10.0.0.99", 30000)
    moved = 0
    for head in heads(4000):
        now = prefix_hash([*before, new], {}, head)
        if now == new:
            moved += 1
        else:
            assert now == prefix_hash(before, {}, head)
    assert 300 < moved < 700


def test_a_prompt_without_a_head_goes_to_the_least_loaded() -> None:
    replicas = [Replica("a", 1), Replica("b", 1)]
    assert choose("PrefixHash", replicas, {replicas[0]: 1}, b"", 0) == replicas[1]
