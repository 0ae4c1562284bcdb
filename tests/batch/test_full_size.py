"""50,000 lines of 3.9 kB through the gateway and a worker: memory and time, printed."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from skirret_api.tenants import FolderStore
from skirret_batch.folder import Folder
from skirret_batch.record import load
from skirret_batch.testing import chat_line

pytestmark = pytest.mark.full

LINES = 50_000
MB = 1_000_000
WORKER = """
import asyncio, resource, sys, time
from skirret_api.tenants import FolderStore
from skirret_batch.folder import Folder
from skirret_batch.record import load
from skirret_batch.completions import Template
from skirret_batch.testing import completion
from skirret_batch.worker import Worker, WorkerSettings

class Short:
    # Keeps nothing of what it is asked.
    async def complete(self, endpoint, body, turn):
        return completion({"model": "m", "messages": [{"content": "yes"}]})

    async def model(self, name):
        return name

    async def template(self, name):
        return Template()

async def main(path, batch_id):
    store = Folder(FolderStore(path=path))
    began = time.monotonic()
    work = asyncio.create_task(
        Worker(store, batch_id, Short(), WorkerSettings(), slot="0").live()
    )
    while (await load(store, batch_id))[0].batch.status == "validating" and not work.done():
        await asyncio.sleep(0.2)
    planned = time.monotonic() - began
    record = await work
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(record.batch.request_counts.completed, planned, time.monotonic() - began, peak)

asyncio.run(main(*sys.argv[1:]))
"""


def line(number: int) -> bytes:
    return chat_line(f"request-{number}", f"{number % 20}: " + "word " * 750 + str(number))


async def test_a_batch_of_full_size_fits(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    store = FolderStore(path=str(tmp_path / "store"))
    (tenants / "team.store.json").write_text(store.model_dump_json())
    (tenants / "team.token").write_text("token")
    (tmp_path / "endpoints.json").write_text("{}")
    command = [sys.executable, "-m", "skirret_gateway", "--port=0", "--host=127.0.0.1"]
    command += [f"--endpoints={tmp_path}/endpoints.json", f"--tenants={tenants}"]
    command += ["--release-namespace=team"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as gateway:
        try:
            assert gateway.stderr is not None
            said = re.search(rb"listening on .*:(\d+)", gateway.stderr.readline())
            assert said is not None
            batch_id, size, took = await _submit(f"http://127.0.0.1:{int(said[1])}")
            gateway_peak = _peak(gateway.pid)
        finally:
            gateway.kill()
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, store.path, batch_id), stdout=subprocess.PIPE
    )
    printed, _ = await done.communicate()
    completed, planned, ended, worker_peak = map(float, printed.split())
    print(
        f"\n{size / MB:.0f} MB uploaded in {took:.1f} s; gateway {gateway_peak / MB:.0f} MB; "
        f"validated and planned in {planned:.1f} s, ended after {ended:.1f} s; "
        f"worker {worker_peak / MB:.0f} MB"
    )
    assert completed == LINES
    assert (await load(Folder(store), batch_id))[0].batch.status == "completed"
    assert gateway_peak <= 200 * MB
    assert worker_peak <= 300 * MB
    assert planned <= 60


async def _submit(url: str) -> tuple[str, int, float]:
    size = 0

    async def form() -> AsyncIterator[bytes]:
        nonlocal size
        part = b"--x\r\ncontent-disposition: form-data; name="
        yield part + b"purpose\r\n\r\nbatch\r\n" + part + b"file; filename=in.jsonl\r\n\r\n"
        for number in range(0, LINES, 100):
            piece = b"".join(map(line, range(number, number + 100)))
            size += len(piece)
            yield piece
        yield b"\r\n--x--\r\n"

    began = time.monotonic()
    async with aiohttp.ClientSession() as session:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        async with session.post(f"{url}/v1/files", data=form(), headers=headers) as answer:
            file_id = (await answer.json())["id"]
        took = time.monotonic() - began
        wanted = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        headers = {"content-type": "application/json"}
        data = json.dumps(wanted)
        async with session.post(f"{url}/v1/batches", data=data, headers=headers) as answer:
            return (await answer.json())["id"], size, took


def _peak(pid: int) -> int:
    """Bytes that were resident at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024
