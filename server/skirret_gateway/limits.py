"""What keys may use, and whether one more request fits: a function of what was used and when.

Every gateway enforces its share of each limit. What a request takes of its tokens is guessed when
it comes and set right when it ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from skirret_api.errors import Overloaded
from skirret_api.tenants import ApiKey

MINUTE = 60
BYTES_A_TOKEN = 4  # of JSON around English text; guesses only


@dataclass(frozen=True, slots=True)
class Share:
    """Of every limit, that of one gateway among `units`."""

    index: int = 0
    units: int = 1

    def of(self, limit: int) -> int:
        """Shares add up to the limit; but none is 0, since that would answer nobody ever."""
        return max(1, limit // self.units + (self.index < limit % self.units))


class Window:
    """What was used within the last minute, in slots of a second."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int]] = deque()  # second, amount; the oldest first
        self._used = 0

    def add(self, amount: int, now: float) -> None:
        """`amount` may be negative, to set an earlier one right."""
        if amount:
            self._slots.append((int(now), amount))
            self._used += amount

    def used(self, now: float) -> int:
        while self._slots and self._slots[0][0] <= now - MINUTE:
            self._used -= self._slots.popleft()[1]
        return self._used

    def wait(self, limit: int, amount: int, now: float) -> float:
        """Seconds until `amount` fits; 0 if it does."""
        over = self.used(now) + amount - limit
        if over <= 0:
            return 0.0
        for second, part in self._slots:
            over -= part
            if over <= 0:
                return second + MINUTE - now
        return float(MINUTE)

    def reset(self, now: float) -> float:
        """Seconds until nothing is used."""
        return self._slots[-1][0] + MINUTE - now if self.used(now) else 0.0


@dataclass(slots=True)
class Used:
    """Of one key."""

    requests: Window = field(default_factory=Window)
    tokens: Window = field(default_factory=Window)
    streams: int = 0


def check(
    key: ApiKey, used: Used, today: int, share: Share, tokens: int, is_stream: bool, now: float
) -> None:
    """Raises Overloaded when a request of about `tokens` tokens is too much for its key.

    `today` are the tokens that all gateways together have counted for it today.
    """
    if key.tokens_per_day is not None and today >= key.tokens_per_day:
        raise Overloaded(
            f"Your key's quota of {key.tokens_per_day} tokens a day is used up: {today}. "
            "The next day begins at midnight, UTC.",
            retry_after=120,
            code="insufficient_quota",
            headers={"x-should-retry": "false", **headers(key, used, share, now)},
        )
    if (limit := key.requests_per_minute) is not None:
        wait = used.requests.wait(share.of(limit), 1, now)
        _refuse(wait, f"{limit} requests a minute", key, used, share, now)
    if (limit := key.tokens_per_minute) is not None:
        ours = share.of(limit)
        # One that never fits may go alone.
        wait = used.tokens.wait(ours, min(tokens, ours), now)
        _refuse(wait, f"{limit} tokens a minute", key, used, share, now)
    if is_stream and key.streams is not None and used.streams >= share.of(key.streams):
        _refuse(1.0, f"{key.streams} streams at once", key, used, share, now)


def headers(key: ApiKey, used: Used, share: Share, now: float) -> dict[str, str]:
    """What is left of the limits by the minute, as OpenAI tells it."""
    told = {}
    for what, limit, window in (
        ("requests", key.requests_per_minute, used.requests),
        ("tokens", key.tokens_per_minute, used.tokens),
    ):
        if limit is not None:
            ours = share.of(limit)
            told[f"x-ratelimit-limit-{what}"] = str(ours)
            told[f"x-ratelimit-remaining-{what}"] = str(max(0, ours - window.used(now)))
            told[f"x-ratelimit-reset-{what}"] = f"{window.reset(now):.3f}s"
    return told


def _refuse(wait: float, limit: str, key: ApiKey, used: Used, share: Share, now: float) -> None:
    if wait > 0:
        part = f" ({share.units} gateways share it)" if share.units > 1 else ""
        raise Overloaded(
            f"Rate limit reached for your key: {limit}{part}. Please try again in {wait:.0f} s.",
            retry_after=ceil(wait),
            headers=headers(key, used, share, now),
        )
