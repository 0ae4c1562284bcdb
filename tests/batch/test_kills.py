"""Real processes, killed at random moments: every line counts once, and costs little more.

SKIRRET_SEED=n chooses the same members and moments again; the seed of a run is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from skirret_api.tenants import FolderStore, S3Store
from skirret_batch import record as records
from skirret_batch.store import BatchStore, open_store
from skirret_batch.testing import chat_line, outcome, submit
from skirret_batch.testing.crew import Crew, free_ports

LINES = 500
KILLS = 20
IN_FLIGHT = 6  # lines of one worker
SECONDS = 0.15  # that a line takes
FLUSH = 0.3
SETTINGS = (
    f"concurrency={IN_FLIGHT}",
    f"flush_after={FLUSH}",
    "renew_after=0.25",
    "stale_after=1",
    "poll=0.2",
    "report_after=0.1",
    "shard_lines=100",
    "part_size=5242880",
    "rest_first=0.05",
    "rest_longest=0.5",
)
# What is asked again after a kill: what was in flight, and what was answered and not committed.
_UNCOMMITTED = round(IN_FLIGHT * (FLUSH + 0.5) / SECONDS)
LOST = {
    "worker": IN_FLIGHT + _UNCOMMITTED,
    "engine": 2 * IN_FLIGHT,
    "gateway": 2 * IN_FLIGHT,
    "sweeper": 0,
    "embedded": IN_FLIGHT + _UNCOMMITTED,
}

T = TypeVar("T")


@dataclass
class Seen:
    """What a client that polls was told."""

    statuses: list[str]
    done: list[int]


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("SKIRRET_SEED", time.time_ns() % 1_000_000))


async def test_a_batch_in_a_bucket_survives_kills(
    tmp_path: Path, bucket: S3Store, seed: int
) -> None:
    store = bucket.model_copy(update={"prefix": f"kills-{seed}"})
    await survives_in_a_bucket(tmp_path, store, seed)


async def test_a_batch_in_a_folder_survives_kills(tmp_path: Path, seed: int) -> None:
    await survives_in_a_folder(tmp_path, seed)


@pytest.mark.full
@pytest.mark.parametrize("number", range(10))
async def test_ten_batches_in_a_bucket_survive_kills(
    tmp_path: Path, bucket: S3Store, seed: int, number: int
) -> None:
    store = bucket.model_copy(update={"prefix": f"kills-{seed}-{number}"})
    await survives_in_a_bucket(tmp_path, store, seed + number)


@pytest.mark.full
@pytest.mark.parametrize("number", range(10))
async def test_ten_batches_in_a_folder_survive_kills(
    tmp_path: Path, seed: int, number: int
) -> None:
    await survives_in_a_folder(tmp_path, seed + number)


async def survives_in_a_bucket(tmp_path: Path, settings: S3Store, seed: int) -> None:
    """As on Kubernetes: an engine, a gateway, two workers, a sweeper."""
    stage = Stage(tmp_path, settings)
    async with Crew.of(tmp_path) as crew, aiohttp.ClientSession() as session:
        engine_port, port = free_ports(2)
        crew.hire("engine", *stage.engine(engine_port))
        crew.hire("sweeper", *stage.sweeper())
        crew.hire("gateway", *stage.gateway(port, f"http://127.0.0.1:{engine_port}"))
        client = Client(session, f"http://127.0.0.1:{port}")
        file_id = await client.upload(input_of(LINES))
        now = time.time()
        record = records.new_record(
            records.new_id("batch", now),
            now=now,
            endpoint="/v1/chat/completions",
            input_file_id=file_id,
            parallelism=2,
        )
        await records.create(stage.store, record)
        for slot in ("0", "1"):
            crew.hire(f"worker-{slot}", *stage.worker(record.id, slot, client.url))
        kills = asyncio.create_task(stage.kill(crew, random.Random(seed)))
        seen, batch = await client.follow(record.id, kills)
        await crew.done("worker-0", "worker-1")
        await check(client, stage, seen, batch, crew.killed, seed)


async def survives_in_a_folder(tmp_path: Path, seed: int) -> None:
    """As without Kubernetes, twice: two servers on one folder, and a gateway and a sweeper."""
    settings = FolderStore(path=str(tmp_path / "store"))
    stage = Stage(tmp_path, settings)
    async with Crew.of(tmp_path) as crew, aiohttp.ClientSession() as session:
        one, two, port = free_ports(3)
        crew.hire("embedded-0", *stage.engine(one, settings.path))
        crew.hire("embedded-1", *stage.engine(two, settings.path))
        crew.hire("sweeper", *stage.sweeper())
        crew.hire("gateway", *stage.gateway(port, f"http://127.0.0.1:{one}"))
        client = Client(session, f"http://127.0.0.1:{port}")
        batch_id = await client.create(await client.upload(input_of(LINES)))
        kills = asyncio.create_task(stage.kill(crew, random.Random(seed)))
        seen, batch = await client.follow(batch_id, kills)
        await check(client, stage, seen, batch, crew.killed, seed)


@pytest.mark.parametrize("slots", [("0", "1"), ("0", "0")], ids=["two", "twins"])
async def test_a_worker_that_sleeps_through_the_loss_of_its_shards_changes_nothing(
    tmp_path: Path, bucket: S3Store, slots: tuple[str, str]
) -> None:
    """Stopped in the middle of its lines, and woken once another has ended the batch."""
    stage = Stage(tmp_path, bucket.model_copy(update={"prefix": f"stopped-{time.time_ns()}"}))
    batch_id = await submit(stage.store, input_of(100), parallelism=2)
    async with Crew.of(tmp_path) as crew:
        port = free_ports(1)[0]
        crew.hire("engine", *stage.engine(port))
        crew.hire("sleeper", *stage.worker(batch_id, slots[0], f"http://127.0.0.1:{port}"))
        while len(stage.asked()) < 10:
            await asyncio.sleep(0.02)
        crew.signal("sleeper", signal.SIGSTOP)
        crew.hire("other", *stage.worker(batch_id, slots[1], f"http://127.0.0.1:{port}"))
        await crew.done("other")
        ended, etag = await records.load(stage.store, batch_id)
        assert ended.batch.request_counts.completed == 100
        listed = [entry async for entry in stage.store.list("files/")]
        crew.signal("sleeper", signal.SIGCONT)
        await crew.done("sleeper")
    assert (await records.load(stage.store, batch_id))[1] == etag
    assert [entry async for entry in stage.store.list("files/")] == listed
    assert (await outcome(stage.store, ended)).ids == [f"c{n}" for n in range(100)]
    assert len(stage.asked()) <= 100 + LOST["worker"]
    await stage.store.close()


def input_of(count: int) -> bytes:
    return b"".join(chat_line(f"c{n}", f"t{n:04}") for n in range(count))


async def check(
    client: Client,
    stage: Stage,
    seen: Seen,
    batch: Mapping[str, Any],
    killed: Counter[str],
    seed: int,
) -> None:
    by_kind = Counter(dict.fromkeys(LOST, 0))
    for name, times in killed.items():
        by_kind[name.partition("-")[0]] += times
    asked = Counter(stage.asked())
    most = LINES + sum(LOST[kind] * times for kind, times in by_kind.items())
    print(
        f"\nseed {seed}: {killed.total()} kills ({dict(killed)}), {LINES} lines, "
        f"{asked.total()} asked of at most {most}"
    )
    output = await client.lines(batch["output_file_id"])
    assert [line["custom_id"] for line in output] == [f"c{n}" for n in range(LINES)]
    assert batch["status"] == "completed"
    assert batch["error_file_id"] is None
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert batch["usage"]["output_tokens"] == 3 * LINES
    assert all(line["response"]["body"]["choices"] for line in output)
    assert set(asked) == {f"t{n:04}" for n in range(LINES)}
    assert asked.total() <= most
    assert seen.done == sorted(seen.done)
    order = ["validating", "in_progress", "finalizing", "completed"]
    assert seen.statuses == [status for status in order if status in seen.statuses]
    ended, _ = await records.load(stage.store, batch["id"])
    assert ended.batch.model_dump() == {k: v for k, v in batch.items() if k != "x_progress"}
    assert [pending async for pending in stage.store.uploads("")] == []
    assert [entry async for entry in stage.store.list("live/")] == []
    await stage.store.close()


class Stage:
    """Settings and commands of every process."""

    def __init__(self, folder: Path, settings: S3Store | FolderStore) -> None:
        self.folder = folder
        self.store: BatchStore = open_store(settings)
        tenants = folder / "tenants"
        tenants.mkdir()
        self._store_file, self._token_file = tenants / "team.store.json", tenants / "team.token"
        self._store_file.write_text(settings.model_dump_json())
        self._token_file.write_text("tok\n")

    async def kill(self, crew: Crew, chance: random.Random) -> None:
        """All along the batch: one kill in each twentieth of its lines, or after three seconds."""

        async def moment(kill: int) -> None:
            lines, deadline = LINES / KILLS * (kill + chance.random()), time.monotonic() + 3
            while len(self.asked()) < lines and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0, 0.2))

        await crew.kill_at_random(chance, KILLS, moment)

    def asked(self) -> list[str]:
        """Every line that the engines were asked."""
        file = self.folder / "asked"
        return file.read_text().split() if file.exists() else []

    def engine(self, port: int, store: str | None = None) -> list[str]:
        files = [f"--folder={store}", *self._settings()] if store else []
        return [
            *("skirret_batch.testing.engine", f"--port={port}", f"--seconds={SECONDS}"),
            *(f"--asked={self.folder / 'asked'}", *files),
        ]

    def gateway(self, port: int, engine: str) -> list[str]:
        endpoints = self.folder / "endpoints.json"
        endpoints.write_text(json.dumps({"m": [engine]}))
        return [
            *("skirret_gateway", "--host=127.0.0.1", f"--port={port}", f"--endpoints={endpoints}"),
            *(f"--tenants={self.folder / 'tenants'}", "--release-namespace=team"),
        ]

    def worker(self, batch_id: str, slot: str, gateway: str) -> list[str]:
        return [
            *("skirret_batch.worker", f"--batch={batch_id}", f"--slot={slot}"),
            *(f"--gateway={gateway}", f"--store-file={self._store_file}"),
            *(f"--token-file={self._token_file}", *self._settings()),
        ]

    def sweeper(self) -> list[str]:
        return ["skirret_batch.testing.sweeper", str(self._store_file)]

    def _settings(self) -> list[str]:
        return [f"--set={each}" for each in SETTINGS]


class Client:
    """A user that asks again while nobody answers."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def upload(self, data: bytes) -> str:
        async def once() -> str:
            form = aiohttp.FormData({"purpose": "batch"})
            form.add_field("file", data, filename="in.jsonl")
            async with self._session.post(f"{self.url}/v1/files", data=form) as answer:
                answer.raise_for_status()
                return str((await answer.json())["id"])

        return await self._patiently(once)

    async def create(self, file_id: str) -> str:
        wanted = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }

        async def once() -> str:
            headers = {"idempotency-key": "one"}
            url = f"{self.url}/v1/batches"
            async with self._session.post(url, json=wanted, headers=headers) as answer:
                answer.raise_for_status()
                return str((await answer.json())["id"])

        return await self._patiently(once)

    async def follow(self, batch_id: str, kills: asyncio.Task[None]) -> tuple[Seen, Any]:
        """Looks at the batch until it has ended and nobody is killed any more."""
        seen = Seen([], [])
        while True:
            batch = await self._patiently(lambda: self._get(f"/v1/batches/{batch_id}"))
            if batch["status"] not in seen.statuses[-1:]:
                seen.statuses.append(batch["status"])
            counts = batch["request_counts"]
            seen.done.append(counts["completed"] + counts["failed"])
            if kills.done() and batch["status"] in ("completed", "failed", "expired", "cancelled"):
                await kills
                return seen, batch
            await asyncio.sleep(0.1)

    async def lines(self, file_id: str) -> list[Any]:
        async def once() -> str:
            url = f"{self.url}/v1/files/{file_id}/content"
            async with self._session.get(url) as answer:
                answer.raise_for_status()
                return await answer.text()

        return [json.loads(line) for line in (await self._patiently(once)).splitlines()]

    async def _get(self, path: str) -> Any:
        async with self._session.get(self.url + path) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def _patiently(self, once: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + 120
        while True:
            try:
                return await once()
            except aiohttp.ClientError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
