"""How much a namespace may have in its queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx2
import pytest

from skirret_batch.completions import Answer
from skirret_batch.folder import Folder
from skirret_batch.http import files_and_batches
from skirret_batch.plan import Body
from skirret_batch.receive import Limits
from skirret_batch.record import Record, load
from skirret_batch.testing import FakeCompletions, chat_line, completion, submit
from skirret_batch.worker import Worker, WorkerSettings

INPUT = chat_line("a", "x" * 4000)  # about 1,000 tokens


async def worked(store: Folder, batch_id: str, settings: WorkerSettings) -> Record:
    return await Worker(store, batch_id, FakeCompletions(), settings, slot="0").live()


async def running(store: Folder, settings: WorkerSettings) -> tuple[str, asyncio.Task[Record]]:
    """A batch that is in progress until its task is cancelled."""

    async def never(request: Body) -> Answer:
        await asyncio.Event().wait()
        return completion(request)

    batch_id = await submit(store, INPUT)
    work = Worker(store, batch_id, FakeCompletions(never), settings, slot="0")
    task = asyncio.create_task(work.live())
    async with asyncio.timeout(10):
        while (await load(store, batch_id))[0].batch.status != "in_progress":
            await asyncio.sleep(0.01)
    return batch_id, task


@pytest.fixture
def limited(fast: WorkerSettings) -> WorkerSettings:
    """Room for one input, and for no two."""
    return replace(fast, max_enqueued_tokens=1500)


async def test_a_batch_that_does_not_fit_beside_others_fails(
    folder: Folder, limited: WorkerSettings
) -> None:
    _, other = await running(folder, limited)
    failed = await worked(folder, await submit(folder, INPUT), limited)
    assert failed.batch.status == "failed"
    assert failed.batch.errors is not None
    assert [error.code for error in failed.batch.errors.data] == ["token_limit_exceeded"]
    other.cancel()


async def test_of_two_that_are_validated_at_once_the_older_stays(
    folder: Folder, limited: WorkerSettings
) -> None:
    ids = [await submit(folder, INPUT), await submit(folder, INPUT)]
    ended = await asyncio.gather(*(worked(folder, each, limited) for each in ids))
    assert "completed" in {record.batch.status for record in ended}


async def test_what_has_ended_gives_its_tokens_back(
    folder: Folder, limited: WorkerSettings
) -> None:
    for _ in range(3):
        record = await worked(folder, await submit(folder, INPUT), limited)
        assert record.batch.status == "completed"


async def test_a_create_that_surely_does_not_fit_is_refused_at_once(
    folder: Folder, limited: WorkerSettings
) -> None:
    limits = Limits(enqueued_tokens=limited.max_enqueued_tokens)
    app = files_and_batches(lambda scope: folder, limits=limits)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        form = {"file": ("in.jsonl", INPUT)}
        upload = await http.post("/v1/files", files=form, data={"purpose": "batch"})
        wanted = {
            "input_file_id": upload.json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        key = {"idempotency-key": "one"}
        first = await http.post("/v1/batches", json=wanted, headers=key)
        assert first.status_code == 200
        _, other = await running(folder, limited)
        second = await http.post("/v1/batches", json=wanted)
        assert (second.status_code, second.json()["error"]["code"]) == (429, "token_limit_exceeded")
        assert second.headers["x-should-retry"] == "false"
        again = await http.post("/v1/batches", json=wanted, headers=key)
        assert again.json()["id"] == first.json()["id"]
        other.cancel()
