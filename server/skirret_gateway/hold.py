"""Requests that wait for a server: in order of arrival, bounded in number and bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from skirret_gateway.table import ModelId

T = TypeVar("T")


class Full(Exception):
    """No room for one more; the message says which limit."""


@dataclass(frozen=True, slots=True)
class HoldLimits:
    requests: int = 1000
    bytes: int = 256 << 20
    per_model: int = 200


class HoldQueue(Generic[T]):
    """One line of waiting requests for each model."""

    def __init__(self, limits: HoldLimits) -> None:
        self._limits = limits
        self._lines: dict[ModelId, deque[tuple[T, int]]] = {}
        self._requests = 0
        self._bytes = 0

    def count(self, model: ModelId) -> int:
        return len(self._lines.get(model, ()))

    @property
    def models(self) -> list[ModelId]:
        """Those that somebody waits for."""
        return list(self._lines)

    def push(self, model: ModelId, item: T, size: int, *, first: bool = False) -> None:
        """Raises Full. `first` is for one that was at its turn and has to come back."""
        limits, waiting = self._limits, self.count(model)
        if waiting >= limits.per_model:
            raise Full(f"{waiting} requests wait for it already")
        if self._requests >= limits.requests:
            raise Full(f"{self._requests} requests wait already")
        if self._bytes + size > limits.bytes:
            raise Full(f"the requests that wait hold {self._bytes} bytes already")
        line = self._lines.setdefault(model, deque())
        (line.appendleft if first else line.append)((item, size))
        self._requests += 1
        self._bytes += size

    def first(self, model: ModelId) -> T | None:
        line = self._lines.get(model)
        return line[0][0] if line else None

    def remove(self, model: ModelId, item: T) -> bool:
        """Whether it was there."""
        line = self._lines.get(model, deque())
        for entry in line:
            if entry[0] is item:
                line.remove(entry)
                self._requests -= 1
                self._bytes -= entry[1]
                if not line:
                    del self._lines[model]
                return True
        return False
