"""The one owner of all pages: free ones, those in the tree, those that a sequence holds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

from skirret_server.cache.eviction import Eviction, lru
from skirret_server.cache.journal import Journal
from skirret_server.cache.pages import PageId, PagePool
from skirret_server.cache.radix import Node, RadixTree
from skirret_server.cache.tokens import Tokens


class Holding:
    """The pages of one sequence, in order of position; the last may be partly filled.

    [0, shared)          are the tree's, kept there by our lock on `node`
    [shared, len(pages)) are ours alone until commit() gives the full ones to the tree
    """

    __slots__ = ("namespace", "node", "pages", "shared")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.node: Node | None = None
        self.pages: array[PageId] = array("i")  # so that a step's are joined at memcpy's speed
        self.shared = 0

    @property
    def private(self) -> array[PageId]:
        return self.pages[self.shared :]


class PrefixCache:
    """Pages for sequences, with every full page shared between those that begin alike."""

    def __init__(
        self, pages: int, page_size: int, *, eviction: Eviction = lru, reuse: bool = True
    ) -> None:
        self.pool = PagePool(pages)
        self.journal = Journal()
        self.tree = RadixTree(page_size, eviction, partial(self.journal.note, ()))
        self.page_size = page_size
        self.reuse = reuse
        self.evicted_tokens = 0

    @property
    def available(self) -> int:
        """Pages that grow() can get at this moment."""
        return self.pool.free + self.tree.evictable

    @property
    def held(self) -> int:
        """Pages that sequences hold, each once."""
        return self.pool.size - self.available

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def longest(self, tokens: Tokens, limit: int, namespace: str) -> int:
        """Tokens of the longest shared prefix; changes nothing."""
        return self.tree.longest(tokens, limit, namespace) if self.reuse else 0

    def hold(self, tokens: Tokens, limit: int, namespace: str) -> Holding:
        """Takes hold of the longest shared prefix of `tokens[:limit]`."""
        holding = Holding(namespace)
        if self.reuse:
            node, pages = self.tree.match(tokens, limit, namespace)
            self._move_lock(holding, node)
            holding.pages, holding.shared = array("i", pages), len(pages)
        return holding

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Makes room for `tokens` tokens in all, evicting for it; False changed nothing."""
        missing = self.pages_for(tokens) - len(holding.pages)
        if missing <= 0:
            return True
        if missing > self.available:
            return False
        if missing > self.pool.free:
            self._evict(missing - self.pool.free)
        holding.pages.extend(self.pool.take(missing))
        return True

    def commit(self, holding: Holding, tokens: Tokens, priority: int = 0) -> None:
        """Shares the full pages of `tokens`, all of them computed.

        Pages computed by another sequence in the meantime are the tree's: ours are given back and
        theirs take their place.
        """
        full = len(tokens) // self.page_size
        if not self.reuse or full <= holding.shared:
            return
        key = tokens[: full * self.page_size]
        pages = holding.pages[:full].tolist()
        node, known = self.tree.insert(key, pages, holding.namespace, priority)
        self._move_lock(holding, node)
        if known > holding.shared:
            self.pool.give(holding.pages[holding.shared : known])
            theirs = self.tree.pages_of(node)[holding.shared : known]
            holding.pages[holding.shared : known] = array("i", theirs)
        holding.shared = full

    def mark(self, holding: Holding, blocks: Sequence[tuple[str, int]]) -> None:
        """Names beginnings of a sequence, by their tokens, as far as they are shared."""
        if holding.node is None:
            return
        stored = []
        for name, tokens in blocks:
            pages = self.pages_for(tokens)
            if pages > holding.shared:
                break
            if name not in self.tree.marked:
                self.tree.mark(holding.node, name, pages)
                stored.append(name)
        if stored:
            self.journal.note(stored)

    def release(self, holding: Holding) -> None:
        """Lets go of all pages; shared ones stay in the tree until they are evicted."""
        self.pool.give(holding.private)
        self._move_lock(holding, None)
        holding.pages, holding.shared = array("i"), 0

    def flush(self) -> None:
        """Forgets every prefix that nobody holds."""
        self._evict(self.tree.evictable)

    def _evict(self, wanted: int) -> None:
        pages = self.tree.evict(wanted)
        self.evicted_tokens += len(pages) * self.page_size
        self.pool.give(pages)

    def _move_lock(self, holding: Holding, node: Node | None) -> None:
        if node is not None:
            self.tree.lock(node)
        if holding.node is not None:
            self.tree.unlock(holding.node)
        holding.node = node
