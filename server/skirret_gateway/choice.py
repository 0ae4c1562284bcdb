"""Which of a model's servers gets a request: pure functions of loads and of what is cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import ceil
from typing import TypeVar

from skirret_api.meta import RoutingStrategy
from skirret_gateway.prefixes import Knowledge
from skirret_gateway.prompt import Prompt
from skirret_gateway.table import Replica

T = TypeVar("T")

# A server is full at this many times the average load; what has its prefix then spills over.
OVERLOAD = 1.25
# What one request more costs, in blocks of a prompt that would be computed anew elsewhere. Of 0, 1
# and 3, in simulated fleets, 1 had the most hits in conversations and lost nothing elsewhere.
LOAD_IN_BLOCKS = 1
BY_BLOCKS: frozenset[RoutingStrategy] = frozenset({"PrefixTree", "CacheAware"})


def choose(
    strategy: RoutingStrategy,
    replicas: Sequence[Replica],
    loads: Mapping[Replica, int],
    prompt: Prompt,
    knowledge: Knowledge,
    turn: int,
) -> Replica:
    """One of `replicas`, which must not be empty; `turn` grows by one a request."""
    if len(replicas) == 1:
        return replicas[0]
    if strategy == "RoundRobin":
        return replicas[turn % len(replicas)]
    if strategy in BY_BLOCKS and prompt.blocks:
        depths = {each: knowledge.depth(each, prompt.blocks) for each in replicas}
        if any(depths.values()):
            return cheapest(replicas, loads, depths)
    if strategy == "LeastLoaded" or not prompt.key:
        return least_loaded(replicas, loads, turn)
    return prefix_hash(replicas, loads, prompt.key)


def least_loaded(replicas: Sequence[Replica], loads: Mapping[Replica, int], turn: int) -> Replica:
    """The one with the fewest requests; equals take turns."""
    fewest = min(loads.get(replica, 0) for replica in replicas)
    equals = [replica for replica in replicas if loads.get(replica, 0) == fewest]
    return equals[turn % len(equals)]


def prefix_hash(replicas: Sequence[Replica], loads: Mapping[Replica, int], key: bytes) -> Replica:
    """Consistent hashing with bounded loads: equal keys meet, and a hot one spreads.

    Every server has a score for this key (rendezvous hashing); the best that isn't full wins. A
    server that comes or goes moves only the keys it wins or won.
    """
    hashed = _hash(key)
    return max(fit(replicas, loads), key=lambda replica: _mix(hashed ^ _seed(replica)))


def cheapest(
    replicas: Sequence[Replica], loads: Mapping[Replica, int], depths: Mapping[Replica, int]
) -> Replica:
    """The one with the least to compute: blocks it lacks, and the requests it has already."""
    return min(
        fit(replicas, loads),
        key=lambda replica: (
            LOAD_IN_BLOCKS * loads.get(replica, 0) - depths[replica],
            loads.get(replica, 0),
            replica,
        ),
    )


def fit(replicas: Sequence[Replica], loads: Mapping[Replica, int]) -> list[Replica]:
    """Those that one more request doesn't make too full; never none."""
    total = sum(loads.get(replica, 0) for replica in replicas)
    bound = ceil(OVERLOAD * (total + 1) / len(replicas))
    return [replica for replica in replicas if loads.get(replica, 0) < bound]


def divided(parts: Sequence[tuple[T, int]], rest: T, session: bytes, turn: int) -> T:
    """Who of `parts` gets this, by hundredths; `rest` what they leave. A session stays with one."""
    # Turns are spread over the hundred, so that a small part comes up evenly, not in a row.
    place = _hash(session) % 100 if session else turn * 37 % 100
    for part, weight in parts:
        if place < weight:
            return part
        place -= weight
    return rest


_MASK = (1 << 64) - 1


@lru_cache(maxsize=4096)
def _seed(replica: Replica) -> int:
    return _hash(str(replica).encode())


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _mix(value: int) -> int:
    value = (value ^ value >> 31) * 0x9E3779B97F4A7C15 & _MASK
    return (value ^ value >> 29) * 0xBF58476D1CE4E5B9 & _MASK
