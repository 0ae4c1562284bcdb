from __future__ import annotations

from collections import Counter
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skirret_api.meta import RoutingStrategy
from skirret_gateway.choice import OVERLOAD, choose, divided, least_loaded, prefix_hash
from skirret_gateway.prefixes import Knowledge, Prefixes
from skirret_gateway.prompt import Prompt, chain
from skirret_gateway.table import Replica

_FLEETS = st.integers(2, 12).map(lambda n: [Replica(f"10.0.0.{i}", 30000) for i in range(n)])
_HEADS = st.binary(min_size=1, max_size=20)


def heads(count: int) -> list[bytes]:
    return [b"prompt %d" % i for i in range(count)]


def test_round_robin_takes_everybody_in_turn() -> None:
    replicas = [Replica(f"s{i}", 1) for i in range(3)]
    chosen = [
        choose("RoundRobin", replicas, {}, Prompt(head=b"same"), Knowledge(), turn)
        for turn in range(6)
    ]
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
    assert {
        choose("LeastLoaded", replicas, {}, Prompt(), Knowledge(), turn) for turn in range(3)
    } == set(replicas)


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
    assert choose("PrefixHash", replicas, {replicas[0]: 1}, Prompt(), Knowledge(), 0) == replicas[1]


BY_BLOCKS: list[RoutingStrategy] = ["PrefixTree", "CacheAware"]


def long(text: bytes, **fields: bytes) -> Prompt:
    return Prompt(text=text * 1024, head=text, **fields)


def servers(count: int) -> list[Replica]:
    return [Replica(f"10.0.0.{i}", 30000) for i in range(count)]


_RUNS = st.lists(st.sampled_from([b"a" * 512, b"b" * 512, b"c" * 100])).map(b"".join)


@given(_RUNS, _RUNS)
def test_equal_blocks_mean_equal_beginnings(one: bytes, two: bytes) -> None:
    for number, (a, b) in enumerate(zip(chain(one), chain(two), strict=False), 1):
        assert (a == b) == (one[: 512 * number] == two[: 512 * number])


def test_there_are_no_more_blocks_than_a_header_has_room_for() -> None:
    assert len(chain(b"x" * 100_000)) == 64
    assert len(chain(b"x" * 1023)) == 1


def test_equal_texts_after_different_tools_are_different_prompts() -> None:
    assert not set(chain(b"x" * 2048, b"[1]")) & set(chain(b"x" * 2048, b"[2]"))


@given(
    st.lists(
        st.tuples(st.sampled_from("ar"), st.integers(0, 1), st.lists(st.integers(0, 9), max_size=4))
    ),
    st.lists(st.integers(0, 9), max_size=4),
)
def test_what_servers_have_is_what_a_naive_twin_says(
    changes: list[tuple[str, int, list[int]]], asked: list[int]
) -> None:
    known, twin = Prefixes(100), [set[bytes](), set[bytes]()]
    for kind, who, numbers in changes:
        blocks = [bytes([number]) for number in numbers]
        if kind == "a":
            known.add(servers(2)[who], blocks)
            twin[who].update(blocks)
        else:
            known.remove(servers(2)[who], blocks)
            twin[who].difference_update(blocks)
    for replica, has in zip(servers(2), twin, strict=True):
        depth = 0
        while depth < len(asked) and bytes([asked[depth]]) in has:
            depth += 1
        assert known.depth(replica, [bytes([number]) for number in asked]) == depth


def test_what_was_used_least_lately_is_forgotten_last_block_first() -> None:
    known, (a, _) = Prefixes(3), servers(2)
    known.add(a, [b"1", b"2"])
    known.add(a, [b"3", b"4"])
    assert known.count(a) == 3
    assert known.depth(a, [b"1", b"2"]) == 1
    assert known.depth(a, [b"3", b"4"]) == 2


@pytest.mark.parametrize("strategy", BY_BLOCKS)
def test_a_prompt_goes_where_most_of_it_was_sent(strategy: RoutingStrategy) -> None:
    replicas, knowledge = servers(4), Knowledge()
    prompt = long(b"system")
    knowledge.sent(replicas[2], prompt.blocks)
    knowledge.sent(replicas[1], prompt.blocks[:3])
    assert choose(strategy, replicas, {}, prompt, knowledge, 0) == replicas[2]


def test_what_a_server_tells_counts_also_when_nothing_was_sent_to_it() -> None:
    replicas, knowledge, prompt = servers(4), Knowledge(), long(b"system")
    knowledge.tells(replicas[3], True)
    knowledge.told.add(replicas[3], prompt.blocks)
    assert choose("CacheAware", replicas, {}, prompt, knowledge, 0) == replicas[3]


@given(st.sampled_from(BY_BLOCKS), st.integers(2, 12), st.integers(1, 200))
def test_a_hot_prefix_spreads_once_its_server_is_full(
    strategy: RoutingStrategy, count: int, requests: int
) -> None:
    replicas, knowledge, prompt = servers(count), Knowledge(), long(b"hot")
    loads: Counter[Replica] = Counter()
    for turn in range(requests):
        chosen = choose(strategy, replicas, loads, prompt, knowledge, turn)
        loads[chosen] += 1
        knowledge.sent(chosen, prompt.blocks)
    assert max(loads.values()) <= ceil(OVERLOAD * requests / count)


@pytest.mark.parametrize("strategy", [*BY_BLOCKS, "PrefixHash"])
def test_an_unknown_prompt_goes_where_every_gateway_would_send_it(
    strategy: RoutingStrategy,
) -> None:
    replicas = servers(8)
    for number in range(100):
        prompt = long(b"prompt %d" % number)
        chosen = choose(strategy, replicas, {}, prompt, Knowledge(), number)
        assert chosen == prefix_hash(replicas, {}, prompt.key)


def test_a_session_stays_together_however_its_prompts_begin() -> None:
    replicas = servers(8)
    chosen = {
        choose(
            "PrefixHash",
            replicas,
            {},
            Prompt(head=b"%d" % turn, session=b"conversation"),
            Knowledge(),
            turn,
        )
        for turn in range(20)
    }
    assert len(chosen) == 1


@given(st.integers(0, 100))
def test_of_a_hundred_requests_each_part_gets_its_weight(weight: int) -> None:
    shares = Counter(divided([("b", weight)], "a", b"", turn) for turn in range(100))
    assert (shares["b"], shares["a"]) == (weight, 100 - weight)


def test_a_session_stays_with_one_part() -> None:
    assert len({divided([("b", 50)], "a", b"session", turn) for turn in range(100)}) == 1


def test_sessions_are_divided_by_weight() -> None:
    shares = Counter(divided([("b", 20)], "a", b"session %d" % n, 0) for n in range(5000))
    assert 900 < shares["b"] < 1100
