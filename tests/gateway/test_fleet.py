from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from skirret_api.errors import NotFound, Unavailable
from skirret_gateway.caller import Caller
from skirret_gateway.fleet import Fleet, Lease, Wish
from skirret_gateway.health import Outcome
from skirret_gateway.hold import HoldLimits
from skirret_gateway.prompt import Prompt
from skirret_gateway.table import Model, ModelId, Replica, Slice, Table, build

M = ModelId("here", "m")
A, B = Replica("a", 1), Replica("b", 1)


def table(*replicas: Replica) -> Table:
    return build([Model(M, 1, ("m",))], [Slice(M, replicas)])


class Clock:
    """Time that a test moves; what is due then happens."""

    def __init__(self) -> None:
        self.now = 100.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def later(self, delay: float, call: Callable[[], None]) -> None:
        self._due.append((self.now + delay, call))

    def move(self, seconds: float) -> None:
        self.now += seconds
        for _, call in [due for due in self._due if due[0] <= self.now]:
            call()


def fleet(
    *replicas: Replica, clock: Clock | None = None, limits: HoldLimits | None = None
) -> Fleet:
    clock = clock or Clock()
    made = Fleet(limits=limits or HoldLimits(), hold_timeout=300, clock=clock, later=clock.later)
    made.update(table(*replicas))
    return made


def wish(of: Fleet) -> Wish:
    return of.wish(M, Prompt(), 10)


def lease(of: Fleet) -> Lease:
    got = of.try_lease(wish(of))
    assert got is not None
    return got


async def waits(of: Fleet, request: Wish) -> asyncio.Task[Lease | None]:
    task = asyncio.create_task(of.lease(request))
    await asyncio.sleep(0)
    return task


def test_nothing_is_found_before_anything_is_known() -> None:
    clock = Clock()
    blank = Fleet(limits=HoldLimits(), hold_timeout=1, clock=clock, later=clock.later)
    assert not blank.is_ready
    with pytest.raises(Unavailable):
        blank.find(Caller("here"), "m")


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(NotFound) as refusal:
        fleet().find(Caller("here"), "nothing")
    assert refusal.value.code == "model_not_found"


def test_leases_go_to_the_least_loaded() -> None:
    busy = fleet(A, B)
    assert {lease(busy).replica, lease(busy).replica} == {A, B}


def test_a_lease_counts_until_it_is_given_back_once() -> None:
    one = fleet(A)
    first = lease(one)
    assert one.running(M) == 1
    first.done(Outcome.ANSWERED)
    first.done(Outcome.ANSWERED)
    assert one.running(M) == 0


def test_a_server_to_avoid_is_taken_when_there_is_no_other() -> None:
    pair = fleet(A, B)
    request = wish(pair)
    request.avoid = {A}
    assert {getattr(pair.try_lease(request), "replica", None) for _ in range(4)} == {B}
    request.avoid = {A, B}
    assert pair.try_lease(request) is not None


async def test_who_waits_is_served_in_order_of_arrival() -> None:
    asleep = fleet()
    served: list[int] = []

    async def ask(number: int) -> None:
        await asleep.lease(wish(asleep))
        served.append(number)

    tasks = [asyncio.create_task(ask(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert asleep.held(M) == 5
    asleep.update(table(A))
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]


async def test_who_waits_gets_the_server_there_is_when_its_turn_comes() -> None:
    asleep = fleet()
    task = await waits(asleep, wish(asleep))
    asleep.update(table(A))
    got = await task
    assert got is not None
    assert got.replica == A


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    gone = fleet(A)
    lease(gone).done(Outcome.UNREACHABLE)
    task = await waits(gone, wish(gone))
    assert gone.try_lease(wish(gone)) is None
    task.cancel()


async def test_a_server_that_could_not_be_reached_is_tried_by_one_who_waits() -> None:
    clock = Clock()
    one = fleet(A, clock=clock)
    lease(one).done(Outcome.UNREACHABLE)
    first, second = await waits(one, wish(one)), await waits(one, wish(one))
    clock.move(1)
    got = await first
    await asyncio.sleep(0)
    assert not second.done()
    assert got is not None
    got.done(Outcome.ANSWERED)
    assert await second is not None


async def test_who_comes_back_is_first_again() -> None:
    clock = Clock()
    one = fleet(A, clock=clock)
    lease(one).done(Outcome.UNREACHABLE)
    request = wish(one)
    first = await waits(one, request)
    second = await waits(one, wish(one))
    clock.move(1)
    got = await first
    assert got is not None
    got.done(Outcome.UNREACHABLE)
    again = await waits(one, request)
    clock.move(5)
    await again
    assert not second.done()
    second.cancel()


async def test_a_server_that_is_listed_anew_has_a_clean_slate() -> None:
    one = fleet(A)
    lease(one).done(Outcome.UNREACHABLE)
    one.update(table())
    one.update(table(A))
    assert one.try_lease(wish(one)) is not None


async def test_there_is_room_for_so_many_to_wait() -> None:
    asleep = fleet(limits=HoldLimits(per_model=1))
    task = await waits(asleep, wish(asleep))
    with pytest.raises(Unavailable) as refusal:
        await asleep.lease(wish(asleep))
    assert int(refusal.value.headers["retry-after"]) >= 1
    task.cancel()


async def test_who_waited_for_the_full_time_is_refused() -> None:
    clock = Clock()
    asleep = fleet(clock=clock)
    request = wish(asleep)
    clock.move(301)
    with pytest.raises(Unavailable):
        await asleep.lease(request)
    assert asleep.held(M) == 0


async def test_impatience_loses_nobodys_place() -> None:
    asleep = fleet()
    request = wish(asleep)
    assert await asleep.lease(request, patience=0.001) is None
    other = await waits(asleep, wish(asleep))
    assert asleep.held(M) == 2
    asleep.update(table(A))
    assert await asleep.lease(request) is not None
    assert await other is not None


async def test_who_leaves_is_forgotten() -> None:
    asleep = fleet()
    task = await waits(asleep, wish(asleep))
    task.cancel()
    await asyncio.wait({task})
    assert asleep.held(M) == 0


async def test_a_lease_that_comes_as_its_client_leaves_goes_back() -> None:
    asleep = fleet()
    task = await waits(asleep, wish(asleep))
    asleep.update(table(A))
    task.cancel()
    await asyncio.wait({task})
    assert asleep.running(M) == 0


async def test_who_waits_for_a_model_that_is_deleted_is_told() -> None:
    asleep = fleet()
    task = await waits(asleep, wish(asleep))
    asleep.update(build([], []))
    with pytest.raises(NotFound):
        await task


async def test_who_waits_when_the_gateway_ends_is_told() -> None:
    asleep = fleet()
    task = await waits(asleep, wish(asleep))
    asleep.close()
    with pytest.raises(Unavailable):
        await task
    with pytest.raises(Unavailable):
        await asleep.lease(wish(asleep))


async def test_demand_is_seen_from_outside() -> None:
    clock = Clock()
    asleep = fleet(clock=clock)
    assert asleep.last_request_age(M) is None
    task = await waits(asleep, wish(asleep))
    assert (asleep.held(M), asleep.last_request_age(M)) == (1, 0.0)
    asleep.update(table(A))
    got = await task
    assert got is not None
    assert (asleep.running(M), asleep.last_request_age(M)) == (1, 0.0)
    got.done(Outcome.ANSWERED)
    clock.move(7)
    assert asleep.last_request_age(M) == 7


async def test_retry_after_is_what_others_had_to_wait() -> None:
    clock = Clock()
    asleep = fleet(clock=clock, limits=HoldLimits(per_model=1))
    for _ in range(20):
        asleep.update(table())
        task = await waits(asleep, wish(asleep))
        clock.move(42)
        asleep.update(table(A))
        got = await task
        assert got is not None
        got.done(Outcome.ANSWERED)
    asleep.update(table())
    task = await waits(asleep, wish(asleep))
    with pytest.raises(Unavailable) as refusal:
        await asleep.lease(wish(asleep))
    assert 40 <= int(refusal.value.headers["retry-after"]) <= 43
    task.cancel()


def split(*ready: str) -> Fleet:
    made = fleet()
    other = ModelId("here", "n")
    models = [
        Model(M, 1, ("m", "chat"), split=(("n", 25), ("gone", 25))),
        Model(other, 2, ("n",)),
    ]
    slices = [Slice(model, (A,)) for model in (M, other) if model.name in ready]
    made.update(build(models, slices))
    return made


def asked(of: Fleet, name: str, session: bytes = b"") -> list[str]:
    route = of.find(Caller("here"), name)
    return [of.split(route, name, session).id.name for _ in range(100)]


def test_a_served_name_is_divided_among_models_by_weight() -> None:
    names = asked(split("m", "n"), "chat")
    assert (names.count("n"), names.count("m")) == (25, 75)


def test_a_full_name_means_its_model_alone() -> None:
    assert set(asked(split("m", "n"), "here/m")) == {"m"}


def test_a_part_without_servers_gets_nothing() -> None:
    assert set(asked(split("m"), "chat")) == {"m"}


def test_a_session_stays_with_one_model() -> None:
    assert len(set(asked(split("m", "n"), "chat", b"session"))) == 1
