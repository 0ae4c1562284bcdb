"""Which cached prefix goes first when pages run short."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skirret_server.cache.radix import Node

# The leaf with the smallest key goes first. A node's key must never fall: the tree's heap holds
# keys that may be out of date, and relies on their being lower bounds.
EvictionKey = tuple[int, ...]
Eviction = Callable[["Node"], EvictionKey]


def eviction(name: str) -> Eviction:
    """By the name that `--radix-eviction-policy` gives it."""
    return {"lru": lru, "slru": slru, "priority": by_priority}[name]


def lru(node: Node) -> EvictionKey:
    """Least recently used first."""
    return (node.used,)


def slru(node: Node) -> EvictionKey:
    """Prefixes hit at least twice outlive those that were not."""
    return (int(node.hits >= 2), node.used)


def by_priority(node: Node) -> EvictionKey:
    """Lower priority first, least recently used among equals."""
    return (node.priority, node.used)
