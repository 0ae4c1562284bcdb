"""Which of a model's servers gets a request: pure functions of loads and the prompt's head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import ceil

from skirret_api.meta import RoutingStrategy
from skirret_gateway.table import Replica

# A server is full at this many times the average load; what has its prefix then spills over.
OVERLOAD = 1.25


def choose(
    strategy: RoutingStrategy,
    replicas: Sequence[Replica],
    loads: Mapping[Replica, int],
    head: bytes,
    turn: int,
) -> Replica:
    """One of `replicas`, which must not be empty; `turn` grows by one a request."""
    if len(replicas) == 1:
        return replicas[0]
    if strategy == "RoundRobin":
        return replicas[turn % len(replicas)]
    if strategy == "LeastLoaded" or not head:
        return least_loaded(replicas, loads, turn)
    return prefix_hash(replicas, loads, head)


def least_loaded(replicas: Sequence[Replica], loads: Mapping[Replica, int], turn: int) -> Replica:
    """The one with the fewest requests; equals take turns."""
    fewest = min(loads.get(replica, 0) for replica in replicas)
    equals = [replica for replica in replicas if loads.get(replica, 0) == fewest]
    return equals[turn % len(equals)]


def prefix_hash(replicas: Sequence[Replica], loads: Mapping[Replica, int], head: bytes) -> Replica:
    """Consistent hashing with bounded loads: equal heads meet, and a hot one spreads.

    Every server has a score for this head (rendezvous hashing); the best that isn't full wins. A
    server that comes or goes moves only the heads it wins or won.
    """
    total = sum(loads.get(replica, 0) for replica in replicas)
    bound = ceil(OVERLOAD * (total + 1) / len(replicas))
    key = _hash(head)
    return max(
        (replica for replica in replicas if loads.get(replica, 0) < bound),
        key=lambda replica: _mix(key ^ _seed(replica)),
    )


_MASK = (1 << 64) - 1


@lru_cache(maxsize=4096)
def _seed(replica: Replica) -> int:
    return _hash(str(replica).encode())


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _mix(value: int) -> int:
    value = (value ^ value >> 31) * 0x9E3779B97F4A7C15 & _MASK
    return (value ^ value >> 29) * 0xBF58476D1CE4E5B9 & _MASK
