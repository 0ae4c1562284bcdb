"""What came to be in the cache and what went, numbered, for whoever wants to know where to ask."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import Lock

from skirret_server.core import CacheNews

_KEPT = 20_000  # changes; who has missed more is told everything


class Journal:
    """Written by one thread and read by others."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._lock = Lock()
        self._has: dict[str, None] = {}
        self._changes: deque[tuple[str, bool]] = deque(maxlen=kept)  # a name, and whether it came
        self._sequence = 0  # of the last change

    def note(self, stored: Iterable[str], removed: Iterable[str] = ()) -> None:
        with self._lock:
            for name in stored:
                self._has[name] = None
                self._add(name, True)
            for name in removed:
                self._has.pop(name, None)
                self._add(name, False)

    def since(self, after: int) -> CacheNews:
        """All changes after that number; everything there is when some of them are forgotten."""
        with self._lock:
            missed = self._sequence - after
            if not 0 <= missed <= len(self._changes):
                return CacheNews(self._sequence, True, tuple(self._has))
            first = len(self._changes) - missed
            last = {name: came for at, (name, came) in enumerate(self._changes) if at >= first}
            stored = tuple(name for name, came in last.items() if came)
            removed = tuple(name for name, came in last.items() if not came)
            return CacheNews(self._sequence, False, stored, removed)

    def _add(self, name: str, came: bool) -> None:
        self._changes.append((name, came))
        self._sequence += 1
