"""Results of a batch that still runs, read as they are committed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import pytest

from skirret_batch.completions import Answer
from skirret_batch.folder import Folder
from skirret_batch.http import files_and_batches
from skirret_batch.plan import Body
from skirret_batch.testing import FakeCompletions, chat_line, last_message, submit
from skirret_batch.worker import Worker, WorkerSettings

TOTAL = 24


@pytest.fixture
async def http(folder: Folder) -> AsyncIterator[httpx2.AsyncClient]:
    app = files_and_batches(lambda scope: folder)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


@pytest.mark.parametrize("shard_lines", [6, TOTAL])
async def test_every_result_is_read_once_while_the_batch_runs(
    folder: Folder, http: httpx2.AsyncClient, fast: WorkerSettings, shard_lines: int
) -> None:
    allowed = asyncio.Semaphore(0)
    held = {"t3", "t17"}  # nothing ends before we have read the rest

    async def script(request: Body) -> Answer | None:
        if last_message(request) in held:
            await asyncio.Event().wait()
        await allowed.acquire()
        return None

    batch_id = await submit(folder, *(chat_line(f"c{n}", f"t{n}") for n in range(TOTAL)))
    settings = replace(fast, shard_lines=shard_lines, concurrency=TOTAL)
    worker = Worker(folder, batch_id, FakeCompletions(script), settings, slot="0")
    living = asyncio.create_task(worker.live())
    read: list[str] = []
    cursor = "0"
    async with asyncio.timeout(20):
        while len(read) < TOTAL - len(held):
            allowed.release()
            answer = await http.get(f"/v1/batches/{batch_id}/output?after={cursor}")
            assert answer.status_code == 200, answer.text
            read += [json.loads(line)["custom_id"] for line in answer.text.splitlines()]
            cursor = answer.headers["x-next-after"]
    assert sorted(read) == sorted(f"c{n}" for n in range(TOTAL) if f"t{n}" not in held)
    if shard_lines == TOTAL:
        assert cursor == str(len(read))
    worker.stop()
    await living


@pytest.mark.parametrize("after", ["-1", "x", "1", "0.0.1", "1" * 10])
async def test_a_cursor_we_did_not_give_is_refused(
    folder: Folder, http: httpx2.AsyncClient, after: str
) -> None:
    batch_id = await submit(folder, chat_line("a"))
    answer = await http.get(f"/v1/batches/{batch_id}/output?after={after}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


async def test_before_the_first_result_there_is_nothing(
    folder: Folder, http: httpx2.AsyncClient
) -> None:
    batch_id = await submit(folder, chat_line("a"))
    answer = await http.get(f"/v1/batches/{batch_id}/output")
    assert (answer.status_code, answer.text, answer.headers["x-next-after"]) == (200, "", "0")


async def test_an_ended_batch_names_its_files(
    folder: Folder, http: httpx2.AsyncClient, fast: WorkerSettings
) -> None:
    batch_id = await submit(folder, chat_line("a"))
    record = await Worker(folder, batch_id, FakeCompletions(), fast, slot="0").live()
    answer = await http.get(f"/v1/batches/{batch_id}/output")
    assert answer.status_code == 404
    assert record.batch.output_file_id is not None
    assert record.batch.output_file_id in answer.json()["error"]["message"]
    assert (await http.get("/v1/batches/batch_x/output")).status_code == 404
