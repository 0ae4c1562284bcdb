"""The door to the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from skirret_operator.kinds import DEPLOYMENT, MODEL, SERVICE
from skirret_operator.kube import Conflict, Kube, Refused, Unreachable, connect
from skirret_operator.reconcile.plan import Note, Plan
from skirret_operator.testing.api_server import ApiServer
from skirret_operator.testing.objects import NAMESPACE, NOW, model


@pytest.fixture
async def kube(api: ApiServer) -> AsyncIterator[Kube]:
    async with await connect() as client:
        yield Kube(client, lambda: NOW)


def service(name: str = "smollm2", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


async def test_a_long_list_is_read_in_pages(api: ApiServer, kube: Kube) -> None:
    for number in range(1200):
        api.put(service(f"s{number}"))
    found = await kube.list(SERVICE, NAMESPACE)
    assert len(found) == 1200
    assert api.reads[SERVICE.path(NAMESPACE)] == 3
    assert {each["kind"] for each in found} == {"Service"}


async def test_a_label_narrows_a_list(api: ApiServer, kube: Kube) -> None:
    ours = service("ours")
    ours["metadata"]["labels"] = {"a": "b"}
    api.put(ours)
    api.put(service("theirs"))
    (found,) = await kube.list(SERVICE, NAMESPACE, labels="a=b")
    assert found["metadata"]["name"] == "ours"


async def test_applying_the_same_again_changes_nothing(api: ApiServer, kube: Kube) -> None:
    first = await kube.apply(service(ports=[{"name": "http", "port": 1}]))
    again = await kube.apply(service(ports=[{"name": "http", "port": 1}]))
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]


async def test_a_field_no_longer_applied_goes_and_those_of_others_stay(
    api: ApiServer, kube: Kube
) -> None:
    await kube.apply(service(a=1, b=2))
    api.edit(SERVICE, NAMESPACE, "smollm2", lambda body: body["spec"].update(theirs=3))
    live = await kube.apply(service(a=1))
    assert live["spec"] == {"a": 1, "theirs": 3}


async def test_what_is_not_there_is_none(kube: Kube) -> None:
    assert await kube.get(MODEL, NAMESPACE, "nobody") is None


async def test_deleting_what_is_gone_is_no_error(api: ApiServer, kube: Kube) -> None:
    live = api.put(service())
    api.remove(SERVICE, NAMESPACE, "smollm2")
    await kube.delete(live)


async def test_another_object_of_the_same_name_is_not_deleted(api: ApiServer, kube: Kube) -> None:
    old = dict(api.put(service()))
    api.remove(SERVICE, NAMESPACE, "smollm2")
    api.put(service())
    await kube.delete(old)
    assert api.get(SERVICE, NAMESPACE, "smollm2")


async def test_a_status_is_not_written_over_a_newer_object(api: ApiServer, kube: Kube) -> None:
    seen = api.put(model())
    seen = {**seen, "metadata": dict(seen["metadata"])}
    api.edit(MODEL, NAMESPACE, "smollm2", lambda body: body["spec"].update(replicas=2))
    with pytest.raises(Conflict):
        await kube.apply_status(seen, {"url": "x"})


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (500, "etcd is away", Unreachable),
        (503, "shutting down", Unreachable),
        (429, "too many requests", Unreachable),
        (401, "token expired", Unreachable),
        (409, "modified", Conflict),
        (403, "forbidden: exceeded quota", Refused),
        (422, "is invalid", Refused),
        (500, "failed to create typed patch object (x): .spec.a: not declared", Refused),
    ],
)
async def test_errors_say_what_to_do(
    api: ApiServer, kube: Kube, status: int, message: str, error: type[Exception]
) -> None:
    api.fail("PATCH", "/services/smollm2", status, message)
    with pytest.raises(error, match=r"PATCH /api/v1/namespaces/team-a/services/smollm2: "):
        await kube.apply(service())


async def test_a_refusal_is_told_the_same_way_every_time(api: ApiServer, kube: Kube) -> None:
    said = []
    for order in ("b: wrong\n  a: wrong", "a: wrong\n  b: wrong"):
        api.fail("PATCH", "/services/smollm2", 422, f"errors:\n  {order}")
        with pytest.raises(Refused) as caught:
            await kube.apply(service())
        said.append(caught.value.words)
    assert said[0] == said[1]


async def test_a_lost_lease_stops_every_write(api: ApiServer) -> None:
    class Lost(Exception):
        pass

    def guard() -> None:
        raise Lost

    live = api.put(service())
    async with await connect() as client:
        kube = Kube(client, lambda: NOW, guard=guard)
        for write in (kube.apply, kube.create, kube.replace, kube.delete):
            with pytest.raises(Lost):
                await write(live)
    assert api.calls == []


async def test_an_event_that_can_not_be_written_stops_nothing(api: ApiServer, kube: Kube) -> None:
    owner = api.put(model())
    api.fail("POST", "/events", 403, "forbidden")
    await kube.carry_out(Plan(note=Note("Normal", "Serving", "")), owner)


async def test_a_plan_is_carried_out_in_its_order(api: ApiServer, kube: Kube) -> None:
    owner = api.put(model())
    old = api.put(service("old"))
    new = {**service("new"), "kind": "Deployment", "apiVersion": DEPLOYMENT.api_version}
    plan = Plan(
        apply=(new,), delete=(old,), status={"url": "x"}, note=Note("Normal", "Serving", "")
    )
    await kube.carry_out(plan, owner)
    assert [(call.verb, call.path.split("/")[-1]) for call in api.calls] == [
        ("apply", "new"),
        ("delete", "old"),
        ("apply", "status"),
        ("create", "events"),
    ]
