"""What a server's answers say of it: whom to leave alone, how long, and how to trust again.

A failure keeps requests away for a while that doubles each time. After it, one request tries; each
success doubles how many may be there at once, until the server is trusted like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from skirret_gateway.table import Replica

UNBOUNDED = 64  # requests at once; a server trusted with so many is trusted with any number
ERRORS_IN_A_ROW = 5
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds
DRAINING_PAUSE = 1.0


class Outcome(Enum):
    """How a request ended, as far as it speaks of the server."""

    ANSWERED = "answered"
    SERVER_ERROR = "server_error"  # 500, 502, 504
    UNREACHABLE = "unreachable"
    DRAINING = "draining"  # refused with our header before any byte
    CUT = "cut"  # the connection ended too soon, or fell silent
    UNKNOWN = "unknown"  # the client went first


@dataclass(frozen=True, slots=True)
class Health:
    trust: int = UNBOUNDED  # requests it may have at once
    paused_until: float = 0.0
    failures: int = 0  # pauses in a row
    errors: int = 0  # answers with 5xx in a row
    answers: bool = True  # paused for what it answered; when all are, any is better than none


GOOD = Health()


def after(health: Health, outcome: Outcome, now: float) -> Health:
    match outcome:
        case Outcome.ANSWERED:
            trust = min(health.trust * 2, UNBOUNDED)
            return GOOD if trust == UNBOUNDED else replace(health, trust=trust, errors=0)
        case Outcome.UNREACHABLE:
            return _paused(health, now, answers=False)
        case Outcome.DRAINING:
            return Health(trust=1, paused_until=now + DRAINING_PAUSE, answers=False)
        case Outcome.SERVER_ERROR if health.errors + 1 >= ERRORS_IN_A_ROW or health.trust == 1:
            return _paused(health, now, answers=True)
        case Outcome.SERVER_ERROR:
            return replace(health, errors=health.errors + 1)
        case Outcome.CUT | Outcome.UNKNOWN:
            return health


def _paused(health: Health, now: float, answers: bool) -> Health:
    doublings = min(health.failures, 10)
    pause = min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE)
    return Health(trust=1, paused_until=now + pause, failures=health.failures + 1, answers=answers)


def usable(
    replicas: Sequence[Replica],
    health: Callable[[Replica], Health],
    loads: Mapping[Replica, int],
    now: float,
) -> Sequence[Replica]:
    """Those that may get one more request."""
    states = [(replica, health(replica)) for replica in replicas]
    fit = [r for r, state in states if state is GOOD or _admits(state, loads.get(r, 0), now)]
    return fit or [r for r, state in states if state.answers]


def _admits(health: Health, load: int, now: float) -> bool:
    unbounded = health.trust >= UNBOUNDED
    return now >= health.paused_until and (unbounded or load < health.trust)
