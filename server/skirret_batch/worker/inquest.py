"""Whether a line is what ends engines. Pure.

An engine dies once: each line in flight is a suspect, and runs again alone. It dies with one alone:
that one is accused, and waits until nothing else is left to do. Then it is guilty, unless

- engines also die of nobody, as in a stream of restarts: every line that saw a death was answered
- several are accused, or others use the engine, whose lines may be what ended it

of which each asks for one more death alone. Between two deaths that count, and before the verdict,
the engine must have answered another line: one that dies whatever it is asked is broken, and the
batch waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["guilty", "once more", "ask another"]

_MOST_PARDONS = 3  # for deaths of nobody
_ONLY_LINE = 4  # deaths that the only line there is, without one to compare it with, may see


@dataclass(slots=True, eq=False)
class Death:
    witnesses: int = 0  # lines in flight then, that have no answer yet


@dataclass(slots=True, eq=False)
class Work:
    """One line still to be answered."""

    ordinal: int
    shard: int
    tries: int = 0  # that ended in a server's fault
    breaks: int = 0  # of the connection to the gateway, while it waited
    deaths: list[Death] = field(default_factory=list)  # of an engine while it was in flight
    alone: int = 0  # of these, with no other line of ours beside it

    @property
    def is_suspect(self) -> bool:
        """It must run alone."""
        return bool(self.deaths)

    @property
    def is_accused(self) -> bool:
        return self.alone > 0


class Inquest:
    """Times are seconds on any one clock."""

    def __init__(self, *, shared: bool) -> None:
        """`shared`: other workers use the engine too."""
        self._is_shared = shared
        self._last: Death | None = None
        self._died_at = 0.0
        self._nobodys = 0  # deaths whose every witness was answered in the end
        self._accused = 0
        self._answered: Work | None = None
        self._answered_at = 0.0

    def others_seen(self) -> None:
        """The engine runs requests that aren't ours."""
        self._is_shared = True

    def died(self, work: Work, sent: float, now: float) -> None:
        has_lived = self._answered_at > self._died_at
        if self._last is None or sent >= self._died_at:
            self._last, self._died_at = Death(), now
        if work.is_suspect and (has_lived or not work.is_accused):
            self._accused += not work.is_accused
            work.alone += 1
        self._last.witnesses += 1
        work.deaths.append(self._last)

    def answered(self, work: Work, now: float) -> None:
        self._answered, self._answered_at = work, now
        for death in work.deaths:
            death.witnesses -= 1
            self._nobodys += death.witnesses == 0
        work.deaths.clear()

    def verdict(self, accused: Work) -> Verdict:
        if self._answered is None:
            is_only = self._accused == 1 and len(accused.deaths) > _ONLY_LINE
            return "guilty" if is_only else "once more"
        if self._answered_at <= self._died_at:
            return "ask another"
        doubts = self._is_shared + (self._accused > 1) + min(self._nobodys, _MOST_PARDONS)
        return "guilty" if accused.alone > doubts else "once more"

    def another(self) -> Work:
        """A line that an engine has answered, to be asked for comparison."""
        assert self._answered is not None
        return Work(self._answered.ordinal, self._answered.shard)
