"""The servers as they are now: who has how much to do, who is trusted, who waits for whom.

A request asks for a lease on a server of its model and gives it back with what it saw. Leases are
the only place where loads, health and demand change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from skirret_api.errors import ApiError, NotFound, Unavailable
from skirret_gateway.caller import Caller
from skirret_gateway.choice import BY_BLOCKS, choose, divided
from skirret_gateway.health import GOOD, Health, Outcome, after, usable
from skirret_gateway.hold import Full, HoldLimits, HoldQueue
from skirret_gateway.prefixes import Knowledge
from skirret_gateway.prompt import Prompt
from skirret_gateway.table import ModelId, Replica, Route, Table

_TIMER_MARGIN = 0.01  # seconds; event loops round timers to milliseconds
_SHOWN = 256  # characters of a name that may be anything
_FIRST_GUESS = 5.0  # seconds until a model without servers has one, before the first was seen


@dataclass(slots=True)
class Demand:
    """What is asked of a model."""

    running: int = 0
    last: float | None = None  # when a request last came or went, by the fleet's clock
    turn: int = 0
    splits: int = 0  # requests that were divided among models
    usual_wait: float = _FIRST_GUESS  # of requests that were held and then served


@dataclass(eq=False, slots=True)
class Lease:
    """The right to send one request to one server."""

    replica: Replica
    model: ModelId
    _end: Callable[[Lease, Outcome], None]
    _open: bool = True

    def done(self, outcome: Outcome) -> None:
        """Gives it back; only the first call counts."""
        if self._open:
            self._open = False
            self._end(self, outcome)


@dataclass(eq=False, slots=True)
class Wish:
    """A request that needs a server."""

    model: ModelId
    prompt: Prompt
    size: int  # bytes it holds while it waits
    since: float
    avoid: set[Replica] = field(default_factory=set)  # taken only when there is no other
    was_held: bool = False
    granted: asyncio.Future[Lease] | None = None


class Fleet:
    def __init__(
        self,
        *,
        limits: HoldLimits,
        hold_timeout: float,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._hold_timeout = hold_timeout
        self._clock = clock
        self._later = later
        self._table: Table | None = None
        self._loads: dict[Replica, int] = {}  # of those that have any
        self._health: dict[Replica, Health] = {}
        self._demand: dict[ModelId, Demand] = {}
        self._held: HoldQueue[Wish] = HoldQueue(limits)
        self.knowledge = Knowledge()
        self._closed = False

    @property
    def is_ready(self) -> bool:
        """Whether it knows what there is."""
        return self._table is not None

    @property
    def table(self) -> Table:
        """Raises Unavailable as long as nothing is known."""
        if self._table is None:
            raise Unavailable("The gateway has just started. Please try again.")
        return self._table

    def update(self, table: Table) -> None:
        """Routes by `table` from now on. A server that is new to it starts with a clean slate."""
        listed = {replica for route in table.routes.values() for replica in route.replicas}
        self._health = {r: state for r, state in self._health.items() if r in listed}
        self.knowledge.keep(listed)
        self._demand = {
            model: demand
            for model, demand in self._demand.items()
            if model in table.routes or demand.running
        }
        self._table = table
        for model in self._held.models:
            if model in table.routes:
                self._dispatch(model)
            else:
                self._dismiss(model, _not_found(str(model)))

    def find(self, caller: Caller, name: str) -> Route:
        """Raises NotFound, or Unavailable as long as nothing is known."""
        route = self.table.find(caller.namespace, name)
        if route is None or not caller.may_ask(name, route):
            raise _not_found(name)
        return route

    def split(self, route: Route, name: str, session: bytes) -> Route:
        """The model that gets this request for one of the served names of `route`.

        By weight; a session stays with one. A model without servers gets none.
        """
        if not route.model.split or name not in route.served_names:
            return route
        parts = []
        for other, weight in route.model.split:
            found = self.table.routes.get(ModelId(route.id.namespace, other))
            parts.append((found if found is not None and found.replicas else route, weight))
        demand = self._demand_of(route.id)
        demand.splits += 1
        return divided(parts, route, session, demand.splits)

    def wish(self, model: ModelId, prompt: Prompt, size: int) -> Wish:
        """A request came in; it counts as demand from now on."""
        now = self._clock()
        self._demand_of(model).last = now
        return Wish(model, prompt, size, since=now)

    def try_lease(self, wish: Wish) -> Lease | None:
        """A lease at once, if nobody waits before it and a server may take it."""
        is_first = wish.was_held or not self._held.count(wish.model)
        return self._grant(wish) if is_first else None

    async def lease(self, wish: Wish, patience: float | None = None) -> Lease | None:
        """A lease as soon as there is one; None when `patience` seconds were too few.

        Raises Unavailable when there is no room to wait, or it has waited for the full time.
        """
        if wish.granted is None:
            self._enqueue(wish)
        assert wish.granted is not None
        left = wish.since + self._hold_timeout - self._clock()
        timeout = left if patience is None else min(left, patience)
        try:
            await asyncio.wait({wish.granted}, timeout=max(timeout, 0))
        except asyncio.CancelledError:
            self._forget(wish)
            raise
        if wish.granted.done():
            granted, wish.granted = wish.granted, None
            return granted.result()
        if timeout < left:
            return None
        self._forget(wish)
        raise self._unavailable(wish.model, "No server became ready in time")

    def waited(self, wish: Wish) -> float:
        """Seconds since the request came."""
        return round(self._clock() - wish.since, 4)

    def close(self) -> None:
        """Whoever waits is told to come back; from now on nobody may wait."""
        self._closed = True
        for model in self._held.models:
            self._dismiss(model, Unavailable("The gateway is shutting down."))

    def running(self, model: ModelId) -> int:
        return self._demand_of(model).running

    def held(self, model: ModelId) -> int:
        return self._held.count(model)

    def last_request_age(self, model: ModelId) -> float | None:
        """Since a request last came or went; None when there never was one."""
        demand = self._demand_of(model)
        if demand.running or self._held.count(model):
            return 0.0
        return None if demand.last is None else self._clock() - demand.last

    def _demand_of(self, model: ModelId) -> Demand:
        demand = self._demand.get(model)
        if demand is None:
            demand = self._demand[model] = Demand()
        return demand

    def _grant(self, wish: Wish) -> Lease | None:
        route = self.table.routes.get(wish.model)
        if route is None:
            return None
        fit = usable(route.replicas, self._health_of, self._loads, self._clock())
        if wish.avoid:
            fit = [replica for replica in fit if replica not in wish.avoid] or fit
        if not fit:
            return None
        demand = self._demand_of(wish.model)
        strategy, prompt = route.model.strategy, wish.prompt
        replica = choose(strategy, fit, self._loads, prompt, self.knowledge, demand.turn)
        if strategy in BY_BLOCKS and len(route.replicas) > 1:
            self.knowledge.sent(replica, prompt.blocks)
        demand.turn += 1
        demand.running += 1
        self._loads[replica] = self._loads.get(replica, 0) + 1
        return Lease(replica, wish.model, self._end)

    def _health_of(self, replica: Replica) -> Health:
        return self._health.get(replica, GOOD)

    def _end(self, lease: Lease, outcome: Outcome) -> None:
        now = self._clock()
        demand = self._demand_of(lease.model)
        demand.running -= 1
        demand.last = now
        load = self._loads.pop(lease.replica) - 1
        if load:
            self._loads[lease.replica] = load
        self._note(lease.replica, outcome, now)
        self._dispatch(lease.model)

    def _note(self, replica: Replica, outcome: Outcome, now: float) -> None:
        before = self._health_of(replica)
        health = after(before, outcome, now)
        if health is before:
            return
        if health is GOOD:
            self._health.pop(replica, None)
            return
        self._health[replica] = health
        if health.paused_until > now:
            self._later(health.paused_until - now + _TIMER_MARGIN, self._dispatch_all)

    def _enqueue(self, wish: Wish) -> None:
        if self._closed:
            raise Unavailable("The gateway is shutting down.")
        try:
            self._held.push(wish.model, wish, wish.size, first=wish.was_held)
        except Full as error:
            raise self._unavailable(wish.model, f"No server is ready, and {error}") from error
        wish.was_held = True
        wish.granted = asyncio.get_running_loop().create_future()
        self._dispatch(wish.model)

    def _dispatch_all(self) -> None:
        for model in self._held.models:
            self._dispatch(model)

    def _dispatch(self, model: ModelId) -> None:
        """Serves the line while there are servers. Candidates are looked up at each one's turn."""
        while (wish := self._held.first(model)) and (lease := self._grant(wish)):
            self._held.remove(model, wish)
            demand = self._demand_of(model)
            demand.usual_wait += (self._clock() - wish.since - demand.usual_wait) / 4
            assert wish.granted is not None
            wish.granted.set_result(lease)

    def _dismiss(self, model: ModelId, reason: ApiError) -> None:
        """Whoever waits for it is refused."""
        while wish := self._held.first(model):
            self._held.remove(model, wish)
            assert wish.granted is not None
            wish.granted.set_exception(reason)

    def _forget(self, wish: Wish) -> None:
        """Out of the line; a lease that came at the last moment goes back."""
        granted, wish.granted = wish.granted, None
        self._held.remove(wish.model, wish)
        if granted is not None and granted.done() and granted.exception() is None:
            granted.result().done(Outcome.UNKNOWN)

    def _unavailable(self, model: ModelId, what: str) -> Unavailable:
        return Unavailable(
            f"{what} for the model `{model}`. Please try again.",
            retry_after=max(1, ceil(self._demand_of(model).usual_wait)),
        )


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"The model `{name[:_SHOWN]}` does not exist or you do not have access to it.",
        code="model_not_found",
    )
