"""The whole operator, kopf and all, against an API server with the faults of real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from typing import Any

import pytest

from skirret_api.parts import Object
from skirret_operator.informer import DeadWatch
from skirret_operator.kinds import DEPLOYMENT, EVENT, LEASE, MODEL, REVISION, SERVICE
from skirret_operator.lease import LeaseLost
from skirret_operator.testing.api_server import ApiServer
from skirret_operator.testing.objects import NAMESPACE, model, pod

Operating = Callable[..., AbstractAsyncContextManager["asyncio.Task[None]"]]
Eventually = Callable[..., Any]

QUIET = {"resyncSeconds": 60, "recordsSeconds": 60}  # only events wake it


def put(api: ApiServer, body: Object) -> None:
    api.put(deepcopy(body))


def ready(api: ApiServer, name: str = "smollm2") -> Object | None:
    """The condition Ready of a model."""
    live = api.get(MODEL, NAMESPACE, name) or {}
    conditions = live.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == "Ready"), None)


def reason(api: ApiServer, name: str = "smollm2") -> str | None:
    found = ready(api, name)
    return found["reason"] if found else None


def template(api: ApiServer) -> Object:
    found = api.get(DEPLOYMENT, NAMESPACE, "smollm2")
    assert found is not None
    body: Object = found["spec"]["template"]
    return body


def watches_all(api: ApiServer) -> bool:
    return len(api.watched) == 6


async def serve_model(api: ApiServer, eventually: Eventually) -> None:
    """A model with one ready pod."""
    put(api, model())
    await eventually(lambda: api.get(DEPLOYMENT, NAMESPACE, "smollm2"))
    revision = template(api)["metadata"]["labels"]["skirret.dev/revision"]
    put(api, pod(revision=revision, ready=True))
    await eventually(lambda: (ready(api) or {}).get("status") == "True")


async def test_a_model_becomes_ready(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating(**QUIET):
        await eventually(lambda: watches_all(api))
        await serve_model(api, eventually)
        await eventually(lambda: api.all(EVENT))
    assert api.get(SERVICE, NAMESPACE, "smollm2")
    assert len(api.all(REVISION)) == 1
    assert {each["reason"] for each in api.all(EVENT)} == {"Serving"}


async def test_nothing_is_written_at_rest_nor_after_a_restart(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating():
        await serve_model(api, eventually)
    api.calls.clear()
    api.reads.clear()
    async with operating():
        await eventually(lambda: api.reads[DEPLOYMENT.path(NAMESPACE)] > 6)
    assert [call for call in api.calls if "leases" not in call.path] == []


async def test_no_mark_of_kopf_is_on_any_object(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating():
        await serve_model(api, eventually)
    for each in api.objects.values():
        assert "finalizers" not in each["metadata"]
        assert not [key for key in each["metadata"].get("annotations", {}) if "kopf" in key]


async def test_a_burst_of_events_is_little_work(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating(**QUIET):
        await eventually(lambda: watches_all(api))
        await serve_model(api, eventually)
        await asyncio.sleep(0.2)
        path = MODEL.path(NAMESPACE, "smollm2")
        before = api.reads[path]
        for number in range(50):
            live = deepcopy(api.get(MODEL, NAMESPACE, "smollm2") or {})
            live["metadata"]["labels"] = {"n": str(number)}
            api.put(live)
        await eventually(lambda: api.reads[path] > before)
        await asyncio.sleep(0.3)
    assert api.reads[path] - before < 10


async def test_watches_that_expire_are_begun_anew(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating(**QUIET):
        await eventually(lambda: watches_all(api))
        api.expire_watches()
        await eventually(lambda: not api.watched)
        await eventually(lambda: watches_all(api))
        put(api, model())
        await eventually(lambda: reason(api))


async def test_a_deletion_that_the_watch_lost_frees_the_served_name(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    put(api, model("older", created="2026-01-01T00:00:00Z", servedNames=["chat"]))
    put(api, model("newer", servedNames=["chat"]))
    async with operating():
        await eventually(lambda: reason(api, "newer") == "NameTaken")
        api.expire_watches()
        api.remove(MODEL, NAMESPACE, "older", tell=False)
        await eventually(lambda: reason(api, "newer") == "Starting")


async def test_an_edit_frees_a_served_name_at_once(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    put(api, model("older", created="2026-01-01T00:00:00Z", servedNames=["chat"]))
    put(api, model("newer", servedNames=["chat"]))
    async with operating(**QUIET):
        await eventually(lambda: watches_all(api))
        await eventually(lambda: reason(api, "newer") == "NameTaken")
        api.edit(MODEL, NAMESPACE, "older", lambda body: body["spec"].update(servedNames=["other"]))
        await eventually(lambda: reason(api, "newer") == "Starting")


async def test_an_object_that_breaks_the_resync_stops_nobody_else(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    put(api, model("odd", servedNames=5))
    put(api, model())
    async with operating() as task:
        await eventually(lambda: reason(api))
        tried = api.reads[MODEL.path(NAMESPACE)]
        await eventually(lambda: task.done() or api.reads[MODEL.path(NAMESPACE)] > tried + 2)
        assert not task.done()


async def test_a_dead_watch_ends_the_process(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating() as task:
        await serve_model(api, eventually)
        api.silence(MODEL)
        put(api, model("unseen"))
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(task, 10)
    assert caught.group_contains(DeadWatch, match="InferenceModel/team-a/unseen")


async def test_a_watch_that_fails_ends_the_process_and_not_in_silence(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating(**QUIET) as task:
        await eventually(lambda: watches_all(api))
        api.break_watches()
        with pytest.raises(ExceptionGroup):
            await asyncio.wait_for(task, 10)


async def test_a_write_that_fails_is_tried_again(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    api.fail("PATCH", "/deployments/smollm2", 500, "etcd is away", times=3)
    put(api, model())
    async with operating(**QUIET):
        await eventually(lambda: api.get(DEPLOYMENT, NAMESPACE, "smollm2"))


async def test_a_status_written_by_somebody_else_is_looked_at_again(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    api.fail("PATCH", "/smollm2/status", 409, "the object has been modified")
    put(api, model())
    async with operating(**QUIET):
        await eventually(lambda: reason(api) == "Starting")


async def test_a_refusal_is_told_and_taken_back_when_it_ends(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    words = 'Deployment.apps "smollm2" is invalid: spec.template.spec.affinity'
    api.fail("PATCH", "/deployments/smollm2", 422, words, times=3)
    put(api, model())
    async with operating(**QUIET):
        await eventually(lambda: reason(api) == "Refused")
        assert (ready(api) or {})["message"] == words
        await eventually(lambda: reason(api) == "Starting")


async def test_a_deleted_child_comes_back(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating(**QUIET):
        await eventually(lambda: watches_all(api))
        await serve_model(api, eventually)
        api.remove(SERVICE, NAMESPACE, "smollm2")
        await eventually(lambda: api.get(SERVICE, NAMESPACE, "smollm2"))


async def test_a_deleted_model_leaves_nothing(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating():
        await serve_model(api, eventually)
        api.remove(MODEL, NAMESPACE, "smollm2")
        await asyncio.sleep(0.5)
    for kind in (DEPLOYMENT, SERVICE, REVISION):
        assert api.all(kind) == []


async def test_a_child_of_somebody_else_is_not_touched(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    theirs = {
        "kind": "Service",
        "metadata": {"name": "smollm2", "namespace": NAMESPACE, "labels": {"app": "web"}},
        "spec": {"selector": {"app": "web"}},
    }
    put(api, theirs)
    put(api, model())
    async with operating():
        await eventually(lambda: reason(api) == "NameCollision")
    assert (api.get(SERVICE, NAMESPACE, "smollm2") or {})["spec"] == theirs["spec"]
    assert api.get(DEPLOYMENT, NAMESPACE, "smollm2") is None


async def test_an_operator_waits_for_the_one_before(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    held: Object = {
        "kind": "Lease",
        "metadata": {"name": "skirret-operator", "namespace": "skirret-system"},
        "spec": {"holderIdentity": "other", "leaseDurationSeconds": 60, "renewTime": "a"},
    }
    put(api, held)
    put(api, model())
    async with operating():
        await asyncio.sleep(0.5)
        assert reason(api) is None
        api.edit(
            LEASE,
            "skirret-system",
            "skirret-operator",
            lambda body: body["spec"].update(holderIdentity=""),
        )
        await eventually(lambda: reason(api) == "Starting")


async def test_an_operator_that_lost_its_lease_ends(
    api: ApiServer, operating: Operating, eventually: Eventually
) -> None:
    async with operating(leaseSeconds=3) as task:
        await serve_model(api, eventually)
        api.edit(
            LEASE,
            "skirret-system",
            "skirret-operator",
            lambda body: body["spec"].update(holderIdentity="other"),
        )
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(task, 10)
    assert caught.group_contains(LeaseLost)
