"""How many requests at once: additive increase, multiplicative decrease. Pure.

The limit doubles a round (slow start) until the first sign of a full server, then grows by one a
round. It halves on 429, and stands still while requests wait in the server's queue; of a server
that doesn't say, while answers come much slower than the best of late. Where the server's lanes
keep people ahead of us, a request too many only waits: so the start is high. After a server was
away one request finds out when it is back, and half of what it carried goes on at once.
"""

from __future__ import annotations

from skirret_batch.completions import Load

_FIRST = 32.0
_SLOW = 4.0  # times the best seconds per token, from which on the limit no longer grows
_FORGET = 1.002  # the best is forgotten at this rate, an answer


class Pace:
    """Times are seconds on any one clock."""

    def __init__(self, most: int, first_rest: float = 0.5, longest_rest: float = 10.0) -> None:
        self._most = float(most)
        self._first_rest = first_rest
        self._longest_rest = longest_rest
        self._limit = self._first = min(_FIRST, self._most)
        self._carried: float | None = None  # the limit before the server went away
        self._is_starting = True
        self._rest_until = 0.0
        self._decreased_at = 0.0
        self._rests = 0
        self._best: float | None = None

    @property
    def limit(self) -> int:
        """How many may be in flight when we don't rest."""
        return int(self._limit)

    def room(self, now: float) -> int:
        """How many may be in flight now."""
        return 0 if now < self._rest_until else self.limit

    def wait(self, now: float) -> float:
        """How long until there can be room."""
        return max(0.0, self._rest_until - now)

    def answered(self, now: float, seconds: float, tokens: int, load: Load | None) -> None:
        self._rests = 0
        if self._carried is not None:
            self._limit, self._carried = max(self._limit, self._carried / 2), None
        per_token = seconds / max(1, tokens)
        self._best = min(per_token, self._best * _FORGET) if self._best else per_token
        if load is not None and load.waiting > 0:
            self._is_starting = False
            if load.waiting > load.running:
                self._decrease(now, now - seconds, 0.9)
        elif load is not None or per_token <= self._best * _SLOW:
            growth = 1.0 if self._is_starting else 1.0 / self._limit
            self._limit = min(self._most, self._limit + growth)

    def refused(self, now: float, sent: float, retry_after: float | None) -> None:
        """429: there is a server, and it has enough to do."""
        self._decrease(now, sent, 0.5)
        self._rest(now, self._first_rest if retry_after is None else retry_after)

    def away(self, now: float, sent: float, retry_after: float | None) -> None:
        """Nobody answers, or nobody is ready: then one request at a time finds out when."""
        if sent < self._decreased_at:
            return
        self._decreased_at = now
        self._carried = max(self._limit, self._carried or self._first)
        self._limit = 1.0
        self._is_starting = True
        pause = min(self._longest_rest, self._first_rest * 2.0**self._rests)
        self._rests += 1
        self._rest(now, max(pause, retry_after or 0.0))

    def _decrease(self, now: float, sent: float, factor: float) -> None:
        """Once a round: what was sent before the last decrease tells nothing new."""
        self._is_starting = False
        if sent >= self._decreased_at:
            self._decreased_at = now
            self._limit = max(1.0, self._limit * factor)

    def _rest(self, now: float, seconds: float) -> None:
        self._rest_until = max(self._rest_until, now + seconds)
