"""Batches: records and BatchJobs find each other, whichever was first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from skirret_api.parts import Object
from skirret_batch import record as records
from skirret_batch.store import BatchStore
from skirret_operator.kinds import BATCH, JOB
from skirret_operator.testing.api_server import ApiServer
from skirret_operator.testing.objects import NAMESPACE, batch

Operating = Callable[..., AbstractAsyncContextManager[Any]]
Eventually = Callable[..., Any]


@pytest.fixture
def job() -> Object:
    """Made just now, so that its window is open."""
    fresh = batch()
    fresh["metadata"]["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return fresh


def status(api: ApiServer, name: str) -> Object:
    found: Object = (api.get(BATCH, NAMESPACE, name) or {}).get("status", {})
    return found


async def only_record(store: BatchStore) -> records.Record:
    (entry,) = [each async for each in store.list("batches/")]
    return (await records.load(store, entry.key.split("/")[1]))[0]


async def linked_record(store: BatchStore) -> records.Record:
    """The only record, once it names its BatchJob."""
    async with asyncio.timeout(10):
        while (made := await only_record(store)).cr is None:
            await asyncio.sleep(0.01)
    return made


async def by_api(store: BatchStore) -> records.Record:
    now = time.time()
    made = records.new_record(
        records.new_id("batch", now),
        now=now,
        endpoint="/v1/chat/completions",
        input_file_id="file-1",
        metadata={"team": "a"},
    )
    await records.create(store, made)
    return made


async def test_a_batch_job_gets_a_record_and_a_job(
    api: ApiServer, store: BatchStore, operating: Operating, eventually: Eventually, job: Object
) -> None:
    api.put(job)
    async with operating():
        await eventually(lambda: status(api, "summaries").get("status") == "validating")
        await eventually(lambda: api.all(JOB))
        made = await linked_record(store)
    assert made.cr is not None
    assert made.cr.uid == job["metadata"]["uid"]
    assert status(api, "summaries")["id"] == made.id
    assert [each["metadata"]["name"] for each in api.all(JOB)] == ["summaries-1"]


async def test_a_batch_of_the_api_gets_a_batch_job(
    api: ApiServer, store: BatchStore, operating: Operating, eventually: Eventually
) -> None:
    made = await by_api(store)
    name = made.id.replace("_", "-")
    async with operating():
        await eventually(lambda: status(api, name).get("status") == "validating")
        await eventually(lambda: api.all(JOB))
        linked = await linked_record(store)
    live = api.get(BATCH, NAMESPACE, name) or {}
    assert live["spec"]["input"] == {"fileId": "file-1"}
    assert live["spec"]["metadata"] == {"team": "a"}
    assert linked.cr is not None
    assert linked.cr.uid == live["metadata"]["uid"]


async def test_progress_reaches_the_status(
    api: ApiServer, store: BatchStore, operating: Operating, eventually: Eventually, job: Object
) -> None:
    api.put(job)
    async with operating():
        await eventually(lambda: status(api, "summaries").get("id"))
        await records.change(
            store,
            status(api, "summaries")["id"],
            lambda it: records.start(it, model="smollm2", total=20, now=time.time()),
        )
        await eventually(lambda: status(api, "summaries").get("done") == "0/20")
    assert status(api, "summaries")["model"] == "smollm2"


async def test_the_end_reaches_the_status(
    api: ApiServer, store: BatchStore, operating: Operating, eventually: Eventually, job: Object
) -> None:
    api.put(job)
    async with operating():
        await eventually(lambda: status(api, "summaries").get("id"))
        await records.change(
            store, status(api, "summaries")["id"], lambda it: records.fail(it, [], time.time())
        )
        await eventually(lambda: status(api, "summaries").get("status") == "failed")


async def test_deleting_a_batch_job_cancels_the_batch_and_clears_it(
    api: ApiServer, store: BatchStore, operating: Operating, eventually: Eventually, job: Object
) -> None:
    api.put(job)
    async with operating():
        await eventually(lambda: status(api, "summaries").get("id"))
        batch_id = status(api, "summaries")["id"]
        await store.put(f"batches/{batch_id}/seg/0/1-1.jsonl", b"{}")
        api.remove(BATCH, NAMESPACE, "summaries")
        states: list[str] = []

        async def is_clear() -> bool:
            states.append((await records.load(store, batch_id))[0].batch.status)
            keys = [each.key async for each in store.list(f"batches/{batch_id}/")]
            return states[-1] == "cancelled" and len(keys) == 1

        deadline = time.monotonic() + 10
        while not await is_clear():
            assert time.monotonic() < deadline
    assert [each async for each in store.list("live/")] == []
    assert api.all(JOB) == []


async def test_a_killed_worker_is_replaced(
    api: ApiServer, operating: Operating, eventually: Eventually, job: Object
) -> None:
    api.put(job)
    async with operating():
        await eventually(lambda: api.all(JOB))
        api.edit(JOB, NAMESPACE, "summaries-1", lambda body: body.update(status={"failed": 1}))
        await eventually(lambda: api.get(JOB, NAMESPACE, "summaries-2"))
        await eventually(lambda: api.get(JOB, NAMESPACE, "summaries-1") is None)


async def test_a_job_whose_pods_are_refused_says_why(
    api: ApiServer, operating: Operating, eventually: Eventually, job: Object
) -> None:
    api.put(job)
    async with operating():
        made = await eventually(lambda: api.get(JOB, NAMESPACE, "summaries-1"))
        api.put(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": "summaries-1.1", "namespace": NAMESPACE},
                "involvedObject": {"uid": made["metadata"]["uid"]},
                "type": "Warning",
                "reason": "FailedCreate",
                "message": "exceeded quota: small",
                "lastTimestamp": made["metadata"]["creationTimestamp"],
            }
        )
        api.edit(JOB, NAMESPACE, "summaries-1", lambda body: body.update(status={"active": 0}))
        await eventually(
            lambda: (
                "exceeded quota: small"
                in [each["message"] for each in status(api, "summaries").get("conditions", [])]
            )
        )


async def test_a_namespace_without_a_store_says_so(
    api: ApiServer, operating: Operating, eventually: Eventually, job: Object
) -> None:
    api.put(job)
    async with operating(has_store=False):
        found = await eventually(lambda: status(api, "summaries").get("conditions"))
    assert found[0]["reason"] == "StoreUnavailable"
    assert found[0]["message"] == "no store is configured for the namespace team-a"
