"""The prefix cache against a naive twin that remembers what was written in every page."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from skirret_server.cache.check import Broken, check
from skirret_server.cache.eviction import by_priority, lru, slru
from skirret_server.cache.pages import PageId
from skirret_server.cache.prefix import Holding, PrefixCache
from skirret_server.cache.tokens import Tokens

Prefix = tuple[str, tuple[int, ...]]


class Sequence:
    def __init__(self, tokens: Tokens, holding: Holding) -> None:
        self.tokens = tokens
        self.holding = holding


class PrefixCacheMachine(RuleBasedStateMachine):
    """Each page's contents are modelled as the prefix up to its end, written once by its owner."""

    sequences = Bundle("sequences")

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        pages=st.integers(4, 24),
        eviction=st.sampled_from([lru, slru, by_priority]),
    )
    def start(self, page_size: int, pages: int, eviction: object) -> None:
        self.cache = PrefixCache(pages, page_size, eviction=eviction)  # type: ignore[arg-type]
        self.written: dict[PageId, Prefix] = {}
        self.live: list[Sequence] = []
        self.named: dict[str, Prefix] = {}
        self.known: set[str] = set()
        self.told = 0

    @rule(
        target=sequences,
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        namespace=st.sampled_from(["", "tenant"]),
    )
    def hold(self, tokens: list[int], namespace: str) -> Sequence:
        row = array("i", tokens)
        expected = self.longest(tokens, namespace)
        assert self.cache.longest(row, len(row), namespace) == expected
        holding = self.cache.hold(row, len(row), namespace)
        assert len(holding.pages) * self.cache.page_size == expected
        sequence = Sequence(row, holding)
        self.live.append(sequence)
        self.must_hold_its_prefix(sequence)
        return sequence

    @rule(sequence=sequences, count=st.integers(1, 6))
    def compute(self, sequence: Sequence, count: int) -> None:
        holding, size = sequence.holding, self.cache.page_size
        available, before = self.cache.available, len(holding.pages)
        target = min(len(sequence.tokens), before * size + count)
        grown = self.cache.grow(holding, target)
        assert grown == (self.cache.pages_for(target) - before <= available)
        if not grown:
            assert len(holding.pages) == before
            return
        for index in range(before, target // size):
            self.written[holding.pages[index]] = self.prefix(sequence, index + 1)

    @rule(sequence=sequences, priority=st.integers(0, 2))
    def commit(self, sequence: Sequence, priority: int) -> None:
        size = self.cache.page_size
        full = min(len(sequence.tokens) // size, len(sequence.holding.pages))
        for index in range(sequence.holding.shared, full):
            self.written[sequence.holding.pages[index]] = self.prefix(sequence, index + 1)
        self.cache.commit(sequence.holding, sequence.tokens[: full * size], priority)
        assert sequence.holding.shared == full
        self.must_hold_its_prefix(sequence)

    @rule(sequence=sequences, depth=st.integers(1, 20))
    def mark(self, sequence: Sequence, depth: int) -> None:
        size, holding = self.cache.page_size, sequence.holding
        depth = min(depth, len(sequence.tokens))
        pages = -(-depth // size)
        name = f"{holding.namespace}{sequence.tokens[:depth].tolist()}"
        self.cache.mark(holding, [(name, depth)])
        if pages <= holding.shared:
            self.named[name] = self.prefix(sequence, pages)

    @rule(sequence=consumes(sequences))
    def release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.holding)
        self.live.remove(sequence)

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        assert self.cache.tree.evictable == 0

    @invariant()
    def invariants_hold(self) -> None:
        check(self.cache, [sequence.holding for sequence in self.live])

    @invariant()
    def the_journal_names_what_is_in_the_tree(self) -> None:
        in_tree = {self.written[page] for node in self.cache.tree.nodes() for page in node.pages}
        self.named = {name: prefix for name, prefix in self.named.items() if prefix in in_tree}
        news = self.cache.journal.since(-1)
        assert news.is_full
        assert sorted(news.stored) == sorted(self.named)
        changed = self.cache.journal.since(self.told)
        assert not set(changed.stored) & set(changed.removed)
        self.known = self.known.union(changed.stored).difference(changed.removed)
        assert self.known == set(self.named)
        self.told = changed.sequence

    def teardown(self) -> None:
        for sequence in self.live:
            self.cache.release(sequence.holding)
        assert self.cache.available == self.cache.pool.size
        self.cache.flush()
        assert self.cache.pool.free == self.cache.pool.size
        assert not self.cache.tree.roots

    def prefix(self, sequence: Sequence, pages: int) -> Prefix:
        end = pages * self.cache.page_size
        return sequence.holding.namespace, tuple(sequence.tokens[:end])

    def longest(self, tokens: list[int], namespace: str) -> int:
        in_tree = {self.written[page] for node in self.cache.tree.nodes() for page in node.pages}
        size, matched = self.cache.page_size, 0
        while (
            matched + size <= len(tokens)
            and (namespace, tuple(tokens[: matched + size])) in in_tree
        ):
            matched += size
        return matched

    def must_hold_its_prefix(self, sequence: Sequence) -> None:
        for index in range(sequence.holding.shared):
            page = sequence.holding.pages[index]
            assert self.written[page] == self.prefix(sequence, index + 1)


PrefixCacheMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestPrefixCache = PrefixCacheMachine.TestCase


def cached(cache: PrefixCache, tokens: list[int], priority: int = 0) -> None:
    """Computes `tokens` and lets go of them."""
    row = array("i", tokens)
    holding = cache.hold(row, len(row), "")
    assert cache.grow(holding, len(row))
    cache.commit(holding, row, priority)
    cache.release(holding)


def known(cache: PrefixCache, tokens: list[int]) -> int:
    return cache.longest(array("i", tokens), len(tokens), "")


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    cache = PrefixCache(3, 1)
    for token in (1, 2, 3):
        cached(cache, [token])
    cached(cache, [1])  # used again
    cached(cache, [4])
    assert [known(cache, [token]) for token in (1, 2, 3, 4)] == [1, 0, 1, 1]


def test_eviction_takes_the_end_of_a_prefix_and_keeps_its_beginning() -> None:
    cache = PrefixCache(8, 1)
    cached(cache, [1, 2, 3, 4, 5, 6])
    cached(cache, [7, 8, 9, 10])
    assert known(cache, [1, 2, 3, 4, 5, 6]) == 4


def test_slru_keeps_what_was_hit_twice() -> None:
    cache = PrefixCache(3, 1, eviction=slru)
    for token in (1, 1, 1, 2, 3, 4):
        cached(cache, [token])
    assert [known(cache, [token]) for token in (1, 2, 3, 4)] == [1, 0, 1, 1]


def test_a_higher_priority_outlives_a_later_use() -> None:
    cache = PrefixCache(2, 1, eviction=by_priority)
    cached(cache, [1], priority=1)
    cached(cache, [2])
    cached(cache, [3])
    assert [known(cache, [token]) for token in (1, 2, 3)] == [1, 0, 1]


def test_namespaces_share_nothing() -> None:
    cache = PrefixCache(4, 1)
    cached(cache, [1, 2])
    assert cache.longest(array("i", [1, 2]), 2, "another") == 0


def test_a_cache_without_reuse_forgets_at_release() -> None:
    cache = PrefixCache(4, 1, reuse=False)
    cached(cache, [1, 2])
    assert known(cache, [1, 2]) == 0
    assert cache.pool.free == 4


def test_a_held_prefix_is_never_evicted() -> None:
    cache = PrefixCache(2, 1)
    cached(cache, [1, 2])
    holding = cache.hold(array("i", [1, 2]), 2, "")
    assert not cache.grow(cache.hold(array("i", [3]), 1, ""), 1)
    assert holding.pages.tolist() == [1, 2]


def test_the_checker_sees_a_page_with_two_owners() -> None:
    cache = PrefixCache(4, 1)
    holding = cache.hold(array("i", [1]), 1, "")
    cache.grow(holding, 1)
    cache.pool.give(holding.pages)
    with pytest.raises(Broken, match="more than one owner"):
        check(cache, [holding])


def test_the_checker_sees_a_forgotten_holding() -> None:
    cache = PrefixCache(4, 1)
    cached(cache, [1])
    cache.hold(array("i", [1]), 1, "")
    with pytest.raises(Broken, match="locks"):
        check(cache, [])
