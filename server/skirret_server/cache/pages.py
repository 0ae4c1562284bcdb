"""The free pages of the KV cache."""

from __future__ import annotations

from collections.abc import Iterable

PageId = int


class PagePool:
    """Hands out pages 1 to `size`; page 0 belongs to nobody and takes what padding writes.

    The page given back last is taken first, so that a lightly used cache stays small in memory.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size, 0, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[PageId]:
        """`count` pages; the caller has seen to it that they are there."""
        assert 0 <= count <= len(self._free), f"{count} pages asked, {len(self._free)} free"
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def give(self, pages: Iterable[PageId]) -> None:
        self._free.extend(pages)

    def listing(self) -> tuple[PageId, ...]:
        """Every free page, for the invariant checker."""
        return tuple(self._free)
