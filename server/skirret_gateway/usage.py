"""Tokens by key and model: of this gateway since the day began, and of all the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

BATCH = "(batch)"  # in place of a key's name, which has no brackets
ANYBODY = "(anybody)"


class Tokens(NamedTuple):
    """Of one request; `cached` are part of `prompt`."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


def parse(text: bytes) -> Tokens | None:
    """As servers write it: prompt,cached,completion."""
    parts = text.split(b",")
    if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
        return None
    return Tokens(*map(int, parts))


@dataclass(slots=True)
class Counts:
    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def add(self, other: Counts) -> None:
        self.requests += other.requests
        self.prompt += other.prompt
        self.cached += other.cached
        self.completion += other.completion


ByModel = dict[str, Counts]
ByKey = dict[str, ByModel]  # of one namespace


class Usage:
    """Of one day in UTC."""

    own: dict[str, ByKey]  # by namespace
    changed: set[str]  # namespaces

    def __init__(self, day: str) -> None:
        self.begin(day)

    def begin(self, day: str) -> None:
        self.day = day
        self.own, self.changed = {}, set()
        self._others: dict[str, ByKey] = {}
        self._totals: dict[tuple[str, str], int] = {}  # tokens by namespace and key, of all

    def add(self, namespace: str, key: str, model: str, tokens: Tokens) -> None:
        self._add(self.own, namespace, key, model, Counts(1, *tokens))
        self.changed.add(namespace)

    def take_back(self, namespace: str, own: ByKey) -> None:
        """What this gateway had counted before it was started anew."""
        for key, models in own.items():
            for model, counts in models.items():
                self._add(self.own, namespace, key, model, counts)

    def heard(self, namespace: str, others: Iterable[ByKey]) -> None:
        """What the other gateways counted; replaces what was heard before."""
        for key in self._others.pop(namespace, {}):
            self._totals.pop((namespace, key), None)
        for each in others:
            for key, models in each.items():
                for model, counts in models.items():
                    self._add(self._others, namespace, key, model, counts)
        for key, models in self.own.get(namespace, {}).items():
            total = sum(x.prompt + x.completion for x in models.values())
            heard = self._others.get(namespace, {}).get(key, {}).values()
            self._totals[namespace, key] = total + sum(x.prompt + x.completion for x in heard)

    def tokens(self, namespace: str, key: str) -> int:
        """Of all gateways."""
        return self._totals.get((namespace, key), 0)

    def by_model(self, namespace: str, key: str) -> ByModel:
        """Of all gateways."""
        found: ByModel = {}
        for side in (self.own, self._others):
            for model, counts in side.get(namespace, {}).get(key, {}).items():
                found.setdefault(model, Counts()).add(counts)
        return found

    def _add(
        self, side: dict[str, ByKey], namespace: str, key: str, model: str, counts: Counts
    ) -> None:
        models = side.setdefault(namespace, {}).setdefault(key, {})
        models.setdefault(model, Counts()).add(counts)
        total = self._totals.get((namespace, key), 0)
        self._totals[namespace, key] = total + counts.prompt + counts.completion


_FIELDS = ("requests", "prompt", "cached", "completion")


def written(usage: ByKey) -> Mapping[str, Any]:
    """As kept in the store."""
    return {
        key: {model: [getattr(counts, name) for name in _FIELDS] for model, counts in of.items()}
        for key, of in usage.items()
    }


def read(data: Any) -> ByKey:
    """Raises ValueError for what `written` didn't write."""
    try:
        return {
            key: {model: Counts(*map(int, counts)) for model, counts in of.items()}
            for key, of in data.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(f"no usage: {error}") from error
