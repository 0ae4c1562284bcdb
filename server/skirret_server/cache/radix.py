"""The radix tree: which pages hold the KV of which token prefix."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from skirret_server.cache.eviction import Eviction, EvictionKey, lru
from skirret_server.cache.pages import PageId
from skirret_server.cache.tokens import Tokens, common_prefix


class Node:
    """A run of whole pages that every sequence below has in common.

    `locks` counts the sequences whose path runs through here, so it is at least the sum of the
    children's; a node with locks is never evicted.
    """

    __slots__ = (
        "children",
        "hits",
        "key",
        "locks",
        "marks",
        "pages",
        "parent",
        "priority",
        "queued",
        "used",
    )

    def __init__(
        self,
        parent: Node | None,
        key: Tokens,
        pages: list[PageId],
        used: int = 0,
        priority: int = 0,
    ) -> None:
        self.parent = parent
        self.key = key
        self.pages = pages
        self.children: dict[bytes, Node] = {}  # by the bytes of their first page of tokens
        self.locks = 0
        self.hits = 0
        self.used = used  # tick of the last match or insert
        self.priority = priority
        self.queued = False  # has an entry in the tree's heap
        self.marks: dict[str, int] = {}  # names of beginnings, and the last page they take, from 1

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def is_evictable(self) -> bool:
        return not self.children and not self.locks and not self.is_root

    def path(self) -> Iterator[Node]:
        """This node and its ancestors up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent


class Root(Node):
    """The empty prefix of one namespace; forgotten with its last child."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__(None, array("i"), [])
        self.namespace = namespace


class RadixTree:
    """Prefixes in whole pages, one tree for each namespace. Sizes are in pages."""

    def __init__(
        self,
        page_size: int,
        eviction: Eviction = lru,
        forgotten: Callable[[Iterable[str]], None] = lambda marks: None,
    ) -> None:
        """`forgotten` is told of the marks whose pages are evicted."""
        self.page_size = page_size
        self.marked: set[str] = set()
        self._forgotten = forgotten
        self.roots: dict[str, Root] = {}
        self.evictable = 0
        self.protected = 0
        self._eviction = eviction
        self._ticks = count(1)
        # (key when queued, serial, node): at most one entry for a node, and one for each that is
        # evictable. Entries of nodes that no longer are, are dropped when they come up.
        self._heap: list[tuple[EvictionKey, int, Node]] = []
        self._serial = count()

    def longest(self, tokens: Tokens, limit: int, namespace: str = "") -> int:
        """How many of the first `limit` tokens are here; changes nothing."""
        return self._walk(tokens, limit, namespace)[1]

    def match(self, tokens: Tokens, limit: int, namespace: str = "") -> tuple[Node, list[PageId]]:
        """The node where the longest known prefix of `tokens[:limit]` ends, and its pages."""
        node, _, inside = self._walk(tokens, limit, namespace)
        if inside < len(node.key):
            node = self._split(node, inside)
        tick = next(self._ticks)
        for each in node.path():
            each.used = tick
            each.hits += 1
        return node, self.pages_of(node)

    def insert(
        self,
        tokens: Tokens,
        pages: list[PageId],
        namespace: str = "",
        priority: int = 0,
    ) -> tuple[Node, int]:
        """Adds what is new of `tokens`, whole pages of them, and takes over its pages.

        Returns the node where they end and how many pages were here before: of those, the tree
        keeps its own, and the caller's remain the caller's.
        """
        assert len(tokens) == len(pages) * self.page_size, "insert takes whole pages"
        node, at, inside = self._walk(tokens, len(tokens), namespace)
        if inside < len(node.key):
            node = self._split(node, inside)
        if at < len(tokens):
            if isinstance(node, Root):
                self.roots[namespace] = node
            node = self._add_leaf(node, tokens[at:], pages[at // self.page_size :])
        tick = next(self._ticks)
        for each in node.path():
            each.used = tick
            each.priority = max(each.priority, priority)
        self._queue(node)
        return node, at // self.page_size

    def mark(self, node: Node, name: str, pages: int) -> None:
        """Names the first `pages` pages of the path to `node`, for as long as they are all here."""
        end = sum(len(each.pages) for each in node.path())
        for each in node.path():
            end -= len(each.pages)
            if end < pages:
                each.marks[name] = pages - end
                self.marked.add(name)
                return

    def lock(self, node: Node) -> None:
        """Keeps the path to `node` from being evicted."""
        for each in node.path():
            if not each.locks:
                self.evictable -= len(each.pages)
                self.protected += len(each.pages)
            each.locks += 1

    def unlock(self, node: Node) -> None:
        for each in node.path():
            each.locks -= 1
            if not each.locks:
                self.evictable += len(each.pages)
                self.protected -= len(each.pages)
        self._queue(node)

    def evict(self, wanted: int) -> list[PageId]:
        """Forgets leaves until `wanted` pages are free, or nothing can be; returns those pages."""
        freed: list[PageId] = []
        while len(freed) < wanted and self._heap:
            key, _, node = heapq.heappop(self._heap)
            node.queued = False
            if not node.is_evictable:
                continue
            if self._eviction(node) > key:
                self._queue(node)
                continue
            freed += self._trim(node, wanted - len(freed))
        return freed

    def pages_of(self, node: Node) -> list[PageId]:
        """The pages of the whole path to `node`, in order of position."""
        runs = [each.pages for each in node.path()]
        return [page for run in reversed(runs) for page in run]

    def nodes(self) -> Iterator[Node]:
        """Every node below the roots."""
        stack = [child for root in self.roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def queued(self) -> Iterator[Node]:
        """Every node that eviction will look at, for the invariant checker."""
        return (node for _, _, node in self._heap)

    def _walk(self, tokens: Tokens, limit: int, namespace: str) -> tuple[Node, int, int]:
        """Where the longest match ends: the node, tokens matched in all, and inside that node."""
        size = self.page_size
        limit -= limit % size
        node: Node = self.roots.get(namespace) or Root(namespace)
        at = 0
        while at < limit:
            child = node.children.get(tokens[at : at + size].tobytes())
            if child is None:
                break
            common = common_prefix(child.key, tokens, right_from=at, limit=limit - at)
            common -= common % size
            at += common
            if common < len(child.key):
                return child, at, common
            node = child
        return node, at, len(node.key)

    def _split(self, node: Node, at: int) -> Node:
        """Cuts `node` after `at` tokens; returns the new upper part. `node` stays the lower."""
        assert node.parent is not None, "a root has nothing to split"
        size = self.page_size
        upper = Node(node.parent, node.key[:at], node.pages[: at // size], node.used, node.priority)
        upper.locks, upper.hits = node.locks, node.hits
        upper.marks = {name: page for name, page in node.marks.items() if page <= at // size}
        node.marks = {
            name: page - at // size for name, page in node.marks.items() if name not in upper.marks
        }
        node.parent.children[upper.key[:size].tobytes()] = upper
        node.parent, node.key, node.pages = upper, node.key[at:], node.pages[at // size :]
        upper.children[node.key[:size].tobytes()] = node
        return upper

    def _add_leaf(self, parent: Node, key: Tokens, pages: list[PageId]) -> Node:
        leaf = Node(parent, key, pages)
        parent.children[key[: self.page_size].tobytes()] = leaf
        self.evictable += len(pages)
        return leaf

    def _queue(self, node: Node) -> None:
        if node.is_evictable and not node.queued:
            node.queued = True
            heapq.heappush(self._heap, (self._eviction(node), next(self._serial), node))

    def _trim(self, leaf: Node, wanted: int) -> list[PageId]:
        """Takes up to `wanted` pages off the end of a leaf, and the leaf when none remain."""
        keep = max(len(leaf.pages) - wanted, 0)
        taken = leaf.pages[keep:]
        self.evictable -= len(taken)
        if leaf.marks:
            lost = [name for name, page in leaf.marks.items() if page > keep]
            leaf.marks = {name: page for name, page in leaf.marks.items() if page <= keep}
            self.marked.difference_update(lost)
            self._forgotten(lost)
        if keep:
            del leaf.pages[keep:], leaf.key[keep * self.page_size :]
            self._queue(leaf)
        else:
            self._remove(leaf)
        return taken

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None, "a root is no leaf"
        del parent.children[leaf.key[: self.page_size].tobytes()]
        self._queue(parent)
        if isinstance(parent, Root) and not parent.children:
            del self.roots[parent.namespace]
