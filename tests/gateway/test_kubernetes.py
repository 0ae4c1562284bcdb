"""The routing table follows the API server through everything that a watch can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from skirret_gateway.cluster import Cluster, Informer, Resource, endpoints, model
from skirret_gateway.kube import Api, ApiFailed, Object
from skirret_gateway.table import ModelId, Replica, Table
from skirret_gateway.testing.kubernetes import (
    EmulatedApiServer,
    endpoint,
    endpoint_slice,
    inference_model,
)

MODELS, SLICES = "inferencemodels", "endpointslices"
M = ModelId("default", "m")


class Followed:
    """The tables that came."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self._news = asyncio.Condition()

    def update(self, table: Table) -> None:
        self.tables.append(table)

    async def until(self, holds: Callable[[Table], bool]) -> Table:
        async with asyncio.timeout(5):
            while not self.tables or not holds(self.tables[-1]):
                await asyncio.sleep(0.01)
        return self.tables[-1]

    async def hosts(self, *expected: str) -> None:
        """As soon as these are the servers of model m."""
        await self.until(
            lambda table: (
                M in table.routes
                and tuple(replica.host for replica in table.routes[M].replicas) == expected
            )
        )


@asynccontextmanager
async def following(
    server: EmulatedApiServer, *namespaces: str, watch_seconds: float = 60
) -> AsyncIterator[Followed]:
    followed = Followed()
    api = Api(server.access)
    cluster = Cluster(
        api,
        namespaces or ("default",),
        "LeastLoaded",
        followed.update,
        watch_seconds=watch_seconds,
    )
    task = asyncio.create_task(cluster.run())
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.wait({task})
        await api.close()


@pytest.fixture
async def kubernetes() -> AsyncIterator[EmulatedApiServer]:
    async with EmulatedApiServer() as server:
        server.put(MODELS, inference_model("m"))
        server.put(SLICES, endpoint_slice("m-1", "m", endpoint("10.0.0.1")))
        yield server


async def test_what_there_is_is_known_at_once(kubernetes: EmulatedApiServer) -> None:
    async with following(kubernetes) as followed:
        await followed.hosts("10.0.0.1")
        assert len(followed.tables) == 1


async def test_a_server_that_comes_and_goes_is_followed(kubernetes: EmulatedApiServer) -> None:
    async with following(kubernetes) as followed:
        await followed.hosts("10.0.0.1")
        kubernetes.put(
            SLICES, endpoint_slice("m-1", "m", endpoint("10.0.0.1"), endpoint("10.0.0.2"))
        )
        await followed.hosts("10.0.0.1", "10.0.0.2")
        kubernetes.delete(SLICES, "default", "m-1")
        await followed.hosts()


async def test_a_server_that_terminates_gets_no_more_requests(
    kubernetes: EmulatedApiServer,
) -> None:
    async with following(kubernetes) as followed:
        await followed.hosts("10.0.0.1")
        leaving = endpoint("10.0.0.1", ready=True, terminating=True)
        kubernetes.put(SLICES, endpoint_slice("m-1", "m", leaving))
        await followed.hosts()


async def test_models_come_and_go(kubernetes: EmulatedApiServer) -> None:
    async with following(kubernetes) as followed:
        await followed.hosts("10.0.0.1")
        kubernetes.put(MODELS, inference_model("n", servedNames=["other"]))
        await followed.until(lambda table: table.find("default", "other") is not None)
        kubernetes.delete(MODELS, "default", "m")
        await followed.until(lambda table: M not in table.routes)


async def test_slices_of_others_are_not_ours(kubernetes: EmulatedApiServer) -> None:
    foreign = endpoint_slice("foreign", "m", endpoint("10.9.9.9"))
    foreign["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "somebody"
    kubernetes.put(SLICES, foreign)
    async with following(kubernetes) as followed:
        await followed.hosts("10.0.0.1")


async def test_nothing_is_known_before_every_list_was_read(kubernetes: EmulatedApiServer) -> None:
    kubernetes.failures = [503, 500, 403]
    async with following(kubernetes) as followed:
        await followed.hosts("10.0.0.1")
        assert all(table.routes for table in followed.tables)


async def test_a_forgotten_version_is_listed_anew(kubernetes: EmulatedApiServer) -> None:
    async with following(kubernetes) as followed:
        await followed.hosts("10.0.0.1")
        lists = kubernetes.lists
        kubernetes.forget()
        kubernetes.put(SLICES, endpoint_slice("m-1", "m", endpoint("10.0.0.3")))
        await followed.hosts("10.0.0.3")
        assert kubernetes.lists > lists


async def test_what_a_silent_watch_missed_is_known_after_the_next_list(
    kubernetes: EmulatedApiServer,
) -> None:
    async with following(kubernetes, watch_seconds=1) as followed:
        await followed.hosts("10.0.0.1")
        kubernetes.is_silent = True
        kubernetes.delete(SLICES, "default", "m-1")
        kubernetes.put(SLICES, endpoint_slice("m-2", "m", endpoint("10.0.0.2")))
        await followed.hosts("10.0.0.2")


async def test_what_is_known_stays_while_the_api_server_is_away(
    kubernetes: EmulatedApiServer,
) -> None:
    async with following(kubernetes, watch_seconds=1) as followed:
        await followed.hosts("10.0.0.1")
        kubernetes.failures = [503] * 4
        await asyncio.sleep(1.5)
        await followed.hosts("10.0.0.1")


async def test_a_list_of_many_pages_is_read_to_its_end(kubernetes: EmulatedApiServer) -> None:
    for number in range(1200):
        kubernetes.put(MODELS, inference_model(f"model-{number}"))
    async with following(kubernetes) as followed:
        await followed.until(lambda table: len(table.routes) == 1201)


async def test_namespaces_are_followed_side_by_side(kubernetes: EmulatedApiServer) -> None:
    kubernetes.put(MODELS, inference_model("m", "team"))
    kubernetes.put(SLICES, endpoint_slice("m-1", "m", endpoint("10.1.0.1"), namespace="team"))
    async with following(kubernetes, "default", "team") as followed:
        table = await followed.until(lambda table: len(table.routes) == 2)
        route = table.find("default", "team/m")
        assert route is not None
        assert route.replicas == (Replica("10.1.0.1", 30000),)


async def test_an_object_that_makes_no_sense_hides_no_other(
    kubernetes: EmulatedApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    odd = inference_model("odd")
    odd["metadata"]["creationTimestamp"] = "yesterday"
    kubernetes.put(MODELS, odd)
    async with following(kubernetes) as followed:
        await followed.hosts("10.0.0.1")
    assert "odd makes no sense" in caplog.text


def test_a_model_is_read_with_its_names_and_strategy() -> None:
    item = inference_model("m", servedNames=["a", "b"], routing={"strategy": "RoundRobin"})
    read = model(item, "PrefixHash")
    assert (read.id, read.claims, read.strategy) == (M, ("a", "b"), "RoundRobin")
    assert read.created == 1767225600


@pytest.mark.parametrize("ends", ["fails", "ends at once"])
async def test_a_watch_that_never_works_is_tried_ever_more_seldom(ends: str) -> None:
    pauses: list[float] = []

    class Broken(Api):
        def __init__(self) -> None:
            pass

        async def list(self, path: str, selector: str) -> tuple[list[Object], str]:
            return [], "1"

        async def watch(
            self, path: str, selector: str, version: str, seconds: float
        ) -> AsyncGenerator[tuple[str, Object]]:
            if ends == "fails":
                raise ApiFailed("no")
            return
            yield

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise asyncio.CancelledError

    informer = Informer(Broken(), Resource("/x", dict), lambda: None, sleep)
    with pytest.raises(asyncio.CancelledError):
        await informer.run()
    assert pauses[0] < 0.31
    assert pauses[5] > 4


async def test_a_watch_that_lasted_ends_the_waiting() -> None:
    now = 0.0
    pauses: list[float] = []

    class Flaky(Api):
        def __init__(self) -> None:
            self.lasts = [0, 0, 0, 0, 60, 0]

        async def list(self, path: str, selector: str) -> tuple[list[Object], str]:
            return [], "1"

        async def watch(
            self, path: str, selector: str, version: str, seconds: float
        ) -> AsyncGenerator[tuple[str, Object]]:
            nonlocal now
            now += self.lasts.pop(0)
            raise ApiFailed("no")
            yield

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise asyncio.CancelledError

    informer = Informer(Flaky(), Resource("/x", dict), lambda: None, sleep, lambda: now)
    with pytest.raises(asyncio.CancelledError):
        await informer.run()
    assert pauses[3] > 0.9
    assert pauses[4] < 0.31


async def test_a_list_whose_next_page_is_forgotten_is_read_anew(
    kubernetes: EmulatedApiServer,
) -> None:
    for number in range(600):
        kubernetes.put("inferencemodels", inference_model(f"m{number}"))
    kubernetes.page_failures = [410]
    async with following(kubernetes) as followed:
        await followed.until(lambda table: len(table.routes) == 601)


def test_a_server_with_an_address_of_ipv6_is_reached_in_brackets() -> None:
    (replica,) = endpoints(endpoint_slice("m-1", "m", endpoint("fd00::1"))).ready
    assert (replica.host, str(replica)) == ("fd00::1", "[fd00::1]:30000")


def test_a_model_that_leaves_the_strategy_open_gets_the_gateways() -> None:
    assert model(inference_model("m", routing={"strategy": "Auto"}), "LeastLoaded").strategy == (
        "LeastLoaded"
    )


def test_the_parts_of_a_split_are_read() -> None:
    item = inference_model("m", routing={"split": [{"model": "n", "weight": 20}]})
    assert model(item, "PrefixHash").split == (("n", 20),)


def test_a_model_that_is_being_deleted_claims_nothing() -> None:
    item = inference_model("m")
    item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert model(item, "PrefixHash").is_leaving


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ({"ready": True, "terminating": False}, True),
        ({"ready": True}, True),
        ({}, True),
        ({"ready": False}, False),
        ({"ready": True, "terminating": True}, False),
        ({"ready": None, "terminating": None}, True),
    ],
)
def test_only_servers_that_are_ready_and_stay_are_routed_to(
    conditions: dict[str, bool | None], ready: bool
) -> None:
    item = endpoint_slice("m-1", "m", {"addresses": ["10.0.0.1"], "conditions": conditions})
    assert bool(endpoints(item).ready) is ready


def test_the_port_named_http_is_the_servers() -> None:
    item = endpoint_slice("m-1", "m", endpoint("10.0.0.1"))
    item["ports"] = [{"name": "metrics", "port": 1}, {"name": "http", "port": 2}]
    assert endpoints(item).ready == (Replica("10.0.0.1", 2),)
