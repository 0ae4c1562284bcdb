"""The worker as a process: killed, stopped, misconfigured."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from skirret_api.internal import FATAL
from skirret_batch.folder import Folder
from skirret_batch.record import load
from skirret_batch.testing import chat_line, completion, outcome, submit

TOTAL = 60
LINES = [chat_line(f"c{n}", f"t{n}") for n in range(TOTAL)]


class Gateway:
    def __init__(self) -> None:
        self.url = ""
        self.asked: Counter[str] = Counter()

    async def chat(self, request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer tok"
        body = await request.json()
        await asyncio.sleep(0.05)
        self.asked[body["messages"][0]["content"]] += 1
        answer = completion(body)
        return web.Response(body=answer.body, headers={"x-skirret-load": "4,1,0.5"})

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response({"id": request.match_info["name"]})


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", gateway.chat)
    app.router.add_get("/v1/models/{name}", gateway.model)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    gateway.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield gateway
    await runner.cleanup()


async def worker(tmp_path: Path, batch_id: str, url: str) -> Process:
    store, token = tmp_path / "store.json", tmp_path / "token"
    store.write_text(json.dumps({"kind": "folder", "path": str(tmp_path / "store")}))
    token.write_text("tok\n")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "skirret_batch.worker", f"--batch={batch_id}"),
        *(f"--store-file={store}", f"--token-file={token}", f"--gateway={url}"),
        stderr=asyncio.subprocess.PIPE,
    )


async def last_words(process: Process) -> str:
    _, stderr = await process.communicate()
    return stderr.decode().rstrip().rpartition("\n")[2]


async def test_a_killed_worker_is_replaced_without_a_trace(
    folder: Folder, tmp_path: Path, gateway: Gateway
) -> None:
    batch_id = await submit(folder, *LINES)
    first = await worker(tmp_path, batch_id, gateway.url)
    while gateway.asked.total() < 15:
        await asyncio.sleep(0.01)
    first.kill()
    await first.communicate()

    second = await worker(tmp_path, batch_id, gateway.url)
    await second.communicate()
    assert second.returncode == 0
    record, _ = await load(folder, batch_id)
    assert (await outcome(folder, record)).ids == [f"c{n}" for n in range(TOTAL)]
    assert record.batch.request_counts.completed == TOTAL


async def test_a_stopped_worker_says_so_and_keeps_what_it_has(
    folder: Folder, tmp_path: Path, gateway: Gateway
) -> None:
    total = 600  # many times what is in flight at the signal
    batch_id = await submit(folder, *(chat_line(f"c{n}") for n in range(total)))
    first = await worker(tmp_path, batch_id, gateway.url)
    while gateway.asked.total() < 15:
        await asyncio.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    await first.communicate()
    assert first.returncode == 143
    before = gateway.asked.total()
    assert before < total

    second = await worker(tmp_path, batch_id, gateway.url)
    await second.communicate()
    assert second.returncode == 0
    assert gateway.asked.total() == total


async def test_a_worker_that_can_not_work_says_why_in_its_last_line(
    folder: Folder, tmp_path: Path
) -> None:
    await folder.probe()
    process = await worker(tmp_path, "batch_nothing", "http://127.0.0.1:1")
    words = await last_words(process)
    assert process.returncode == 1
    assert words.startswith(FATAL)
    assert json.loads(words.removeprefix(FATAL))["reason"] == "NotThere"
