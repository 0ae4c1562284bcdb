"""What must hold of the pages at every moment. Run by tests after each step, and when idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from skirret_server.cache.prefix import Holding, PrefixCache
from skirret_server.cache.radix import Node, RadixTree


class Broken(Exception):
    """An invariant does not hold: pages leak, or will be written by two sequences."""


def check(cache: PrefixCache, holdings: Sequence[Holding]) -> None:
    """Raises Broken unless every page has one owner and every count is right.

    `holdings` are all holdings that were not released.
    """
    check_owners(cache, holdings)
    check_tree(cache.tree)
    check_locks(cache.tree, holdings)
    for holding in holdings:
        check_row(cache, holding)


def check_owners(cache: PrefixCache, holdings: Sequence[Holding]) -> None:
    owned = Counter(
        chain(
            cache.pool.listing(),
            chain.from_iterable(node.pages for node in cache.tree.nodes()),
            chain.from_iterable(holding.private for holding in holdings),
        )
    )
    twice = [page for page, owners in owned.items() if owners > 1]
    expect(not twice, f"pages with more than one owner: {sorted(twice)}")
    lost = set(range(1, cache.pool.size + 1)) - owned.keys()
    expect(not lost, f"pages without an owner: {sorted(lost)}")
    strange = owned.keys() - set(range(1, cache.pool.size + 1))
    expect(not strange, f"pages that do not exist: {sorted(strange)}")


def check_tree(tree: RadixTree) -> None:
    evictable = protected = 0
    size = tree.page_size
    queued = {id(node) for node in tree.queued()}
    for root in tree.roots.values():
        expect(bool(root.children), f"namespace {root.namespace!r} is empty but remembered")
    for node in tree.nodes():
        expect(len(node.pages) > 0, "a node without pages")
        expect(len(node.key) == len(node.pages) * size, "a node's tokens do not fill its pages")
        parent = node.parent
        expect(
            parent is not None and parent.children.get(node.key[:size].tobytes()) is node,
            "a node its parent does not know",
        )
        expect(
            node.locks >= sum(child.locks for child in node.children.values()),
            "a node with fewer locks than its children together",
        )
        expect(
            all(0 < page <= len(node.pages) for page in node.marks.values()),
            "a node with a mark on pages of another",
        )
        expect(node.queued == (id(node) in queued), "a node wrong about its place in the heap")
        expect(node.queued or not node.is_evictable, "an evictable leaf that is not in the heap")
        if node.locks:
            protected += len(node.pages)
        else:
            evictable += len(node.pages)
    marked = [name for node in tree.nodes() for name in node.marks]
    expect(sorted(marked) == sorted(tree.marked), "marks that are on no node, or on several")
    expect(evictable == tree.evictable, f"{evictable} pages evictable, {tree.evictable} said to be")
    expect(protected == tree.protected, f"{protected} pages protected, {tree.protected} said to be")


def check_locks(tree: RadixTree, holdings: Sequence[Holding]) -> None:
    expected: Counter[Node] = Counter()
    for holding in holdings:
        if holding.node is not None:
            expected.update(holding.node.path())
    for node in tree.nodes():
        expect(
            node.locks == expected[node], f"{node.locks} locks where {expected[node]} sequences run"
        )


def check_row(cache: PrefixCache, holding: Holding) -> None:
    expect(holding.shared <= len(holding.pages), "a sequence shares more pages than it has")
    if holding.node is not None:
        expect(
            cache.tree.pages_of(holding.node) == holding.pages[: holding.shared].tolist(),
            "a sequence's row differs from its path in the tree",
        )


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
