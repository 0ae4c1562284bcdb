"""Who is admitted next: the two lanes of waiting sequences and their order."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator

from skirret_server.scheduler.sequence import Sequence

# Matching every waiting prompt at every step would cost more than it brings.
_MATCHED = 128

CachedTokens = Callable[[Sequence], int]


class InteractiveLane:
    """By priority; then what has waited too long; then the longest cached prefix, then arrival."""

    def __init__(self, cached_tokens: CachedTokens | None, age_bound: float) -> None:
        self._cached_tokens = cached_tokens  # None: arrival alone decides
        self._age_bound = age_bound  # seconds after which arrival decides
        self._waiting: list[Sequence] = []  # by rank: a long queue is not sorted at every step

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_by_rank)

    def remove(self, sequence: Sequence) -> None:
        self._waiting.remove(sequence)

    def in_order(self, now: float) -> list[Sequence]:
        if self._cached_tokens is None:
            return list(self._waiting)
        cached_tokens = self._cached_tokens

        def key(sequence: Sequence) -> tuple[int, bool, int, int]:
            is_old = now - sequence.arrival > self._age_bound
            hit = 0 if is_old else cached_tokens(sequence)
            return (-sequence.request.priority, not is_old, -hit, sequence.number)

        # The others have no hit that is known, so they come after these, by rank.
        return sorted(self._waiting[:_MATCHED], key=key) + self._waiting[_MATCHED:]


class BatchLane:
    """Tenants by the tokens they were served; each tenant's by priority, deadline and arrival.

    So a batch's priority moves it before others of its own tenant, and before nobody else's.

    A tenant that comes back starts level with the least served of those that are here: it is owed
    nothing for the time it was away.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, Sequence]] = {}
        self._served: dict[str, int] = {}
        self._present: Counter[str] = Counter()  # sequences, waiting or running

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def enter(self, tenant: str) -> None:
        """A sequence of `tenant` begins to count."""
        if not self._present[tenant]:
            self._served[tenant] = min(self._served.values(), default=0)
        self._present[tenant] += 1

    def leave(self, tenant: str) -> None:
        self._present[tenant] -= 1
        if not self._present[tenant]:
            del self._present[tenant], self._served[tenant]

    def charge(self, tenant: str, tokens: int) -> None:
        self._served[tenant] += tokens

    def add(self, sequence: Sequence) -> None:
        self._waiting.setdefault(sequence.request.tenant, {})[sequence.number] = sequence

    def remove(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        del self._waiting[tenant][sequence.number]
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def in_order(self) -> Iterator[Sequence]:
        """Lazily: what is charged between two sequences counts for the second."""
        queues = {
            tenant: iter(sorted(waiting.values(), key=_by_urgency))
            for tenant, waiting in self._waiting.items()
        }
        while queues:
            tenant = min(queues, key=lambda each: (self._served[each], each))
            sequence = next(queues[tenant], None)
            if sequence is None:
                del queues[tenant]
            else:
                yield sequence


def _by_rank(sequence: Sequence) -> tuple[int, ...]:
    return sequence.rank


def _by_urgency(sequence: Sequence) -> tuple[int, float, int, int]:
    request = sequence.request
    deadline = math.inf if request.deadline is None else request.deadline
    return (-request.batch_priority, deadline, -request.priority, sequence.number)
