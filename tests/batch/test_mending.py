"""What a person must mend: said everywhere in the same words, and the batch goes on afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from skirret_api.internal import FATAL
from skirret_api.parts import Object
from skirret_api.tenants import FolderStore, S3Store
from skirret_batch import record as records
from skirret_batch.folder import Folder
from skirret_batch.http import files_and_batches
from skirret_batch.store import BatchStore, StoreError, open_store
from skirret_batch.testing import FakeCompletions, chat_line, outcome, submit
from skirret_batch.testing.crew import Crew, free_ports
from skirret_batch.worker import Worker, WorkerSettings
from skirret_operator.build.batch import CONTAINER
from skirret_operator.reconcile.batch import reconcile
from skirret_operator.reconcile.observed import ObservedBatch
from skirret_operator.testing.objects import NOW, batch, config, ended, pod
from skirret_operator.testing.objects import container as container_status

TOTAL = 40
LINES = [chat_line(f"c{n}", f"t{n}") for n in range(TOTAL)]


@dataclass
class Said:
    """Where users look."""

    worker: str  # its last line
    api: str
    job: str  # status.conditions of the BatchJob, while the operator reaches the store
    job_without_store: str  # and while it doesn't


async def said(store: BatchStore, worker: str) -> Said:
    """What is told everywhere of a worker that ended with this on stderr."""
    assert worker.startswith(FATAL)
    transport = httpx2.ASGITransport(app=files_and_batches(lambda scope: store))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        files = {"file": ("in.jsonl", b"x" * 4096)}
        answer = await http.post("/v1/files", files=files, data={"purpose": "batch"})
    assert answer.status_code == 503
    try:
        await store.put("batches/x/batch.json", b"x" * 4096)
    except StoreError as error:
        trouble = str(error)
    job = batch()
    record = reconcile(job, ObservedBatch(), config(), NOW).record
    failed = pod(
        phase="Failed",
        containerStatuses=[container_status(CONTAINER, terminated=ended(1, worker))],
    )
    return Said(
        json.loads(worker.removeprefix(FATAL))["message"],
        answer.json()["error"]["message"],
        complete(job, ObservedBatch(record=record, pods=[failed])),
        complete(job, ObservedBatch(trouble=trouble)),
    )


def complete(job: Object, observed: ObservedBatch) -> str:
    status = reconcile(job, observed, config(), NOW).status
    assert status is not None
    return str(next(x for x in status["conditions"] if x["type"] == "Complete")["message"])


class Bench:
    """A worker as a process, beside an engine that goes on."""

    def __init__(self, folder: Path, crew: Crew) -> None:
        self._folder = folder
        self._store, self._token = folder / "store.json", folder / "token"
        self._token.write_text("tok")
        port = free_ports(1)[0]
        self._gateway = f"http://127.0.0.1:{port}"
        crew.hire(
            *("engine", "skirret_batch.testing.engine", f"--port={port}"),
            *(f"--asked={folder / 'asked'}", "--seconds=0.02"),
        )

    async def last_words(self, settings: S3Store | FolderStore, batch_id: str) -> str:
        """Of one run of a worker; empty when it came to the batch's end."""
        self._store.write_text(settings.model_dump_json())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "skirret_batch.worker", f"--batch={batch_id}"),
            *("--set=flush_after=0.1", "--set=poll=0.1"),
            *(f"--store-file={self._store}", f"--token-file={self._token}"),
            f"--gateway={self._gateway}",
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await process.communicate()
        if process.returncode == 0:
            return ""
        return stderr.decode().rstrip().rpartition("\n")[2]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Crew.of(tmp_path) as crew:
        yield Bench(tmp_path, crew)


async def check(store: BatchStore, batch_id: str) -> None:
    record, _ = await records.load(store, batch_id)
    assert (await outcome(store, record)).ids == [f"c{n}" for n in range(TOTAL)]
    assert record.batch.request_counts.completed == TOTAL


@pytest.mark.s3
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secretKey": "wrong"}, ("bucket tests at", "signature", "check the store's accessKey")),
        ({"bucket": "nowhere"}, ("bucket nowhere at", "does not exist", "make the bucket")),
    ],
    ids=["secret", "bucket"],
)
async def test_a_bucket_that_refuses_us_is_told_everywhere(
    bench: Bench, bucket: S3Store, change: dict[str, str], words: tuple[str, ...]
) -> None:
    right = bucket.model_copy(update={"prefix": uuid4().hex})
    wrong = right.model_copy(update=change)
    store, refusing = open_store(right), open_store(wrong)
    batch_id = await submit(store, *LINES)
    told = await said(refusing, await bench.last_words(wrong, batch_id))
    for text in (told.worker, told.api, told.job, told.job_without_store):
        for word in words:
            assert word in text
        assert "secret" not in text.replace("secretKey", "")
        assert "wrong" not in text
    assert await bench.last_words(right, batch_id) == ""
    await check(store, batch_id)
    await refusing.close()
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a disk to fill")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_is_told_everywhere(bench: Bench, small_disk: Path) -> None:
    settings = FolderStore(path=str(small_disk / "store"))
    store = Folder(settings)
    batch_id = await submit(store, *LINES)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    before = sorted(small_disk.rglob("*"))
    told = await said(store, await bench.last_words(settings, batch_id))
    for text in (told.worker, told.api, told.job, told.job_without_store):
        for word in (str(small_disk), "No space left on device", "free some space there"):
            assert word in text
    assert [each for each in sorted(small_disk.rglob("*")) if each.is_file()] == [
        each for each in before if each.is_file()
    ]
    ballast.unlink()
    assert await bench.last_words(settings, batch_id) == ""
    await check(store, batch_id)


async def test_a_disk_that_is_read_only_is_told_everywhere(bench: Bench, small_disk: Path) -> None:
    settings = FolderStore(path=str(small_disk / "store"))
    store = Folder(settings)
    batch_id = await submit(store, *LINES)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    told = await said(store, await bench.last_words(settings, batch_id))
    for text in (told.worker, told.api, told.job, told.job_without_store):
        assert "Read-only file system; let this process write there" in text
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert await bench.last_words(settings, batch_id) == ""
    await check(store, batch_id)


async def stopped_midway(
    folder: Folder, engine: FakeCompletions, fast: WorkerSettings
) -> tuple[str, str]:
    """A batch of which some lines are answered, and where its input is."""
    batch_id = await submit(folder, *LINES)
    first = Worker(folder, batch_id, engine, replace(fast, concurrency=2), slot="0")
    running = asyncio.create_task(first.live())
    while engine.asked.total() < 10:
        await asyncio.sleep(0.01)
    first.stop()
    return batch_id, str((await running).source)


async def test_an_input_that_is_gone_in_the_middle_is_told_and_put_back(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = FakeCompletions(seconds=0.02)
    batch_id, source = await stopped_midway(folder, engine, fast)
    data = await folder.read(source)
    await folder.delete(source)
    with pytest.raises(StoreError, match=f"nothing at {source}: the input of batch {batch_id}"):
        await Worker(folder, batch_id, engine, fast, slot="0").live()
    assert (await records.load(folder, batch_id))[0].batch.status == "in_progress"
    await folder.put(source, data)
    await Worker(folder, batch_id, engine, fast, slot="0").live()
    await check(folder, batch_id)


async def test_an_input_that_stays_gone_can_be_cancelled(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = FakeCompletions(seconds=0.02)
    batch_id, source = await stopped_midway(folder, engine, fast)
    await folder.delete(source)
    await records.change(folder, batch_id, lambda it: records.cancel(it, 0))
    ended = await Worker(folder, batch_id, engine, fast, slot="0").live()
    assert ended.batch.status == "cancelled"
