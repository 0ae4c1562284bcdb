"""A worker takes a batch to its end, whatever the engine, the users and other workers do."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from skirret_api.tenants import FolderStore
from skirret_batch import files
from skirret_batch import record as records
from skirret_batch.completions import Answer, Load, Template, TimedOut, Unreachable
from skirret_batch.folder import Folder
from skirret_batch.plan import Body
from skirret_batch.record import Record
from skirret_batch.store import BatchStore, NotThere
from skirret_batch.testing import (
    FakeCompletions,
    Outcome,
    Wrapped,
    chat_line,
    completion,
    error_answer,
    last_message,
    outcome,
    submit,
)
from skirret_batch.worker import Worker, WorkerSettings


def worker(
    store: BatchStore,
    batch_id: str,
    engine: FakeCompletions,
    settings: WorkerSettings,
    slot: str = "0",
    clock: Callable[[], float] = time.time,
) -> Worker:
    return Worker(store, batch_id, engine, settings, slot=slot, clock=clock)


def numbered(count: int) -> list[bytes]:
    return [chat_line(f"c{n}", f"t{n:02}") for n in range(count)]


async def until(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.005)


async def finished(
    store: BatchStore, engine: FakeCompletions, fast: WorkerSettings, *lines: bytes
) -> tuple[Record, Outcome]:
    record = await worker(store, await submit(store, *lines), engine, fast).live()
    return record, await outcome(store, record)


async def test_every_line_is_answered_in_the_order_of_the_input(
    store: BatchStore, fast: WorkerSettings
) -> None:
    engine = FakeCompletions()
    lines = [chat_line(f"c{n}", f"{n % 7} {n}") for n in range(100)]
    record, result = await finished(store, engine, replace(fast, shard_lines=30), *lines)

    assert record.batch.status == "completed"
    assert result.ids == [f"c{n}" for n in range(100)]
    first = result.output[0]
    assert first["id"].startswith("batch_req_")
    assert first["error"] is None
    assert first["response"]["request_id"] == "req_fake"
    assert first["response"]["body"]["choices"][0]["message"]["content"] == "0 0"
    assert len({line["id"] for line in result.output}) == 100
    assert engine.asked.total() == 100
    assert record.batch.request_counts.model_dump() == {"total": 100, "completed": 100, "failed": 0}
    assert record.batch.usage is not None
    assert record.batch.usage.output_tokens == 300
    assert record.batch.usage.input_tokens_details.cached_tokens == 100
    assert record.batch.error_file_id is None
    assert record.batch.model == "m"
    assert [entry async for entry in store.list("live/")] == []


async def test_lines_are_asked_in_the_order_of_their_prompts(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = FakeCompletions()
    texts = [f"{n % 5} is the prefix" for n in range(50)]
    lines = [chat_line(str(n), text) for n, text in enumerate(texts)]
    await finished(folder, engine, fast, *lines)
    assert engine.order == sorted(texts)


async def test_a_line_that_fails_fails_alone(folder: Folder, fast: WorkerSettings) -> None:
    async def script(request: Body) -> Answer | None:
        return error_answer(400, "too long") if last_message(request) == "t01" else None

    record, result = await finished(folder, FakeCompletions(script), fast, *numbered(3))
    assert [line["custom_id"] for line in result.output] == ["c0", "c2"]
    assert result.error[0]["response"]["status_code"] == 400
    assert result.error[0]["response"]["body"]["error"]["message"] == "too long"
    assert result.error[0]["error"] is None
    assert record.batch.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}


async def test_a_batch_whose_every_line_fails_is_completed_without_output(
    folder: Folder, fast: WorkerSettings
) -> None:
    async def script(request: Body) -> Answer:
        return error_answer(400)

    record, result = await finished(folder, FakeCompletions(script), fast, *numbered(2))
    assert (record.batch.status, record.batch.output_file_id) == ("completed", None)
    assert result.errors == {"c0": 400, "c1": 400}


async def test_a_line_asks_for_no_stream_and_no_lone_surrogate(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = FakeCompletions()
    lines = (
        chat_line("a"),
        chat_line("b", stream=True),
        chat_line("c", "\ud800"),
        chat_line("d", "x\u2028y", stream=False),
        chat_line("e", temperature="T").replace(b'"T"', b"1e999"),
        chat_line("\ud800\u0000\u2028"),
    )
    _, result = await finished(folder, engine, fast, *lines)
    assert result.errors == {"b": 400, "c": 400, "e": 400}
    ids = [line["custom_id"] for line in result.output]
    assert ids == ["a", "d", "\ud800\u0000\u2028"]
    assert result.error[0]["response"]["body"]["error"]["param"] == "stream"


async def test_a_bad_input_fails_the_batch_with_every_error(
    folder: Folder, fast: WorkerSettings
) -> None:
    record, _ = await finished(
        folder, FakeCompletions(), fast, chat_line("a"), b"{\n", chat_line("a")
    )
    assert record.batch.status == "failed"
    assert record.batch.errors is not None
    errors = [(error.line, error.code) for error in record.batch.errors.data]
    assert errors == [(2, "invalid_json_line"), (3, "duplicate_custom_id")]
    assert record.batch.request_counts.total == 0


async def test_aliases_of_one_model_are_one_model(folder: Folder, fast: WorkerSettings) -> None:
    engine = FakeCompletions(aliases={"m": "ns/m", "blue": "ns/m"})
    record, _ = await finished(folder, engine, fast, chat_line("a"), chat_line("b", model="blue"))
    assert record.batch.status == "completed"


async def test_an_unknown_model_fails_the_batch(folder: Folder, fast: WorkerSettings) -> None:
    record, _ = await finished(folder, FakeCompletions(aliases={}), fast, *numbered(2))
    assert record.batch.errors is not None
    assert {error.code for error in record.batch.errors.data} == {"model_not_found"}


async def test_a_fault_that_passes_costs_no_line(folder: Folder, fast: WorkerSettings) -> None:
    faults: list[Answer | Exception] = [
        error_answer(500),
        TimedOut("slow"),
        error_answer(504),
        ValueError("a bug"),
    ]

    async def script(request: Body) -> Answer | None:
        if last_message(request) == "t01" and faults:
            fault = faults.pop()
            if isinstance(fault, Exception):
                raise fault
            return fault
        return None

    engine = FakeCompletions(script)
    _, result = await finished(folder, engine, fast, *numbered(3))
    assert result.errors == {}
    assert engine.asked["t01"] == 5


async def test_a_fault_that_stays_is_that_lines_after_five_tries(
    folder: Folder, fast: WorkerSettings
) -> None:
    async def script(request: Body) -> Answer | None:
        match last_message(request):
            case "t00":
                return error_answer(500, "broken")
            case "t01":
                raise TimedOut("no answer in time")
            case "t02":
                return Answer(200, b"<html>")
            case "t03":
                return error_answer(503, "took too long", x_should_retry="false")
        return None

    engine = FakeCompletions(script)
    _, result = await finished(folder, engine, fast, *numbered(5))
    assert result.errors == {"c0": 500, "c1": 504, "c2": 500, "c3": 503}
    assert result.error[0]["response"]["body"]["error"]["message"] == "broken"
    assert [engine.asked[f"t{n:02}"] for n in range(5)] == [5, 5, 5, 5, 1]


@pytest.mark.parametrize(
    "refusal",
    [
        Unreachable("nobody there"),
        error_answer(503, retry_after="0"),
        error_answer(429, retry_after="0"),
        error_answer(401),
    ],
)
async def test_an_engine_that_is_away_pauses_the_batch(
    folder: Folder, fast: WorkerSettings, refusal: Answer | Unreachable
) -> None:
    left = 3

    async def script(request: Body) -> Answer | None:
        nonlocal left
        if left:
            left -= 1
            if isinstance(refusal, Exception):
                raise refusal
            return refusal
        return None

    _, result = await finished(folder, FakeCompletions(script), fast, *numbered(20))
    assert result.ids == [f"c{n}" for n in range(20)]
    assert result.errors == {}


async def test_concurrency_grows_while_an_engine_is_free_and_not_once_it_is_full(
    folder: Folder, fast: WorkerSettings
) -> None:
    async def answer_with(load: Load) -> int:
        async def script(request: Body) -> Answer:
            await asyncio.sleep(0.05)  # longer than sending 40 takes
            header = f"{load.running},{load.waiting},{load.kv_usage}"
            return replace(completion(request), headers={"x-skirret-load": header})

        engine = FakeCompletions(script)
        await finished(folder, engine, replace(fast, concurrency=40), *numbered(300))
        return engine.most_running

    assert await answer_with(Load(1, 0, 0.1)) == 40
    assert await answer_with(Load(4, 2, 0.9)) == 32


class Slow:
    """An engine that answers the first few lines at once, and the others never."""

    def __init__(self, quick: int) -> None:
        self._quick = quick
        self.answered = 0
        self.aborted = 0

    async def __call__(self, request: Body) -> Answer | None:
        if int(last_message(request)[1:]) >= self._quick:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                self.aborted += 1
                raise
        self.answered += 1
        return None


async def completed(store: BatchStore, batch_id: str, count: int) -> bool:
    record, _ = await records.load(store, batch_id)
    return record.batch.request_counts.completed >= count


async def test_a_cancel_keeps_what_is_finished_and_stops_the_rest(
    store: BatchStore, fast: WorkerSettings
) -> None:
    slow = Slow(quick=5)
    batch_id = await submit(store, *numbered(25))
    running = asyncio.create_task(worker(store, batch_id, FakeCompletions(slow), fast).live())
    await until(lambda: completed(store, batch_id, 5))
    await records.change(store, batch_id, lambda r: records.cancel(r, time.time()))
    record = await running

    result = await outcome(store, record)
    assert record.batch.status == "cancelled"
    assert [line["custom_id"] for line in result.output] == [f"c{n}" for n in range(5)]
    assert result.errors == {f"c{n}": "batch_cancelled" for n in range(5, 25)}
    assert result.error[0]["response"] is None
    assert record.batch.request_counts.model_dump() == {"total": 25, "completed": 5, "failed": 0}
    assert slow.aborted > 0


async def test_what_is_answered_and_not_yet_written_counts_after_a_cancel(
    folder: Folder, fast: WorkerSettings
) -> None:
    slow = Slow(quick=5)
    batch_id = await submit(folder, *numbered(9))
    settings = replace(fast, flush_after=1000.0)
    running = asyncio.create_task(worker(folder, batch_id, FakeCompletions(slow), settings).live())
    await until(lambda: slow.answered == 5)
    await records.change(folder, batch_id, lambda r: records.cancel(r, time.time()))
    assert (await running).batch.request_counts.completed == 5


async def test_a_line_that_ends_within_the_drain_counts(
    folder: Folder, fast: WorkerSettings
) -> None:
    async def script(request: Body) -> None:
        await asyncio.sleep(0.2)

    engine = FakeCompletions(script)
    batch_id = await submit(folder, *numbered(2))
    settings = replace(fast, cancel_drain=5.0)
    running = asyncio.create_task(worker(folder, batch_id, engine, settings).live())
    await until(lambda: engine.running == 2)
    await records.change(folder, batch_id, lambda r: records.cancel(r, time.time()))
    record = await running
    assert record.batch.status == "cancelled"
    assert record.batch.request_counts.completed == 2


async def test_a_batch_cancelled_before_any_worker_came_runs_nothing(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = FakeCompletions()
    batch_id = await submit(folder, *numbered(3))
    await records.change(folder, batch_id, lambda r: records.cancel(r, time.time()))
    record = await worker(folder, batch_id, engine, fast).live()
    result = await outcome(folder, record)
    assert engine.asked.total() == 0
    assert result.errors == {f"c{n}": "batch_cancelled" for n in range(3)}
    assert record.batch.request_counts.total == 3


async def test_a_batch_cancelled_while_its_model_is_away_ends(
    folder: Folder, fast: WorkerSettings
) -> None:
    class Away(FakeCompletions):
        async def model(self, name: str) -> str | None:
            raise Unreachable("no gateway")

    batch_id = await submit(folder, *numbered(3))
    running = asyncio.create_task(worker(folder, batch_id, Away(), fast).live())
    await asyncio.sleep(0.05)
    await records.change(folder, batch_id, lambda r: records.cancel(r, time.time()))
    record = await running
    assert record.batch.status == "cancelled"
    assert len((await outcome(folder, record)).error) == 3


async def test_a_batch_expires_with_what_it_has(folder: Folder, fast: WorkerSettings) -> None:
    clock = time.time
    late = 0.0
    batch_id = await submit(folder, *numbered(8), window="1h")
    subject = worker(
        folder, batch_id, FakeCompletions(Slow(quick=3)), fast, clock=lambda: clock() + late
    )
    running = asyncio.create_task(subject.live())
    await until(lambda: completed(folder, batch_id, 3))
    late = 3600.0
    record = await running
    result = await outcome(folder, record)
    assert record.batch.status == "expired"
    assert record.batch.finalizing_at is not None
    assert len(result.output) == 3
    assert result.errors == {f"c{n}": "batch_expired" for n in range(3, 8)}
    assert record.batch.request_counts.model_dump() == {"total": 8, "completed": 3, "failed": 0}


async def test_a_batch_that_expired_before_any_worker_came_runs_nothing(
    folder: Folder, fast: WorkerSettings
) -> None:
    engine = FakeCompletions()
    batch_id = await submit(folder, *numbered(3))
    late = worker(folder, batch_id, engine, fast, clock=lambda: time.time() + 90_000)
    record = await late.live()
    assert record.batch.status == "expired"
    assert engine.asked.total() == 0
    assert len((await outcome(folder, record)).error) == 3


async def test_a_discarded_batch_publishes_nothing(folder: Folder, fast: WorkerSettings) -> None:
    batch_id = await submit(folder, *numbered(8))
    engine = FakeCompletions(Slow(quick=3))
    running = asyncio.create_task(worker(folder, batch_id, engine, fast).live())
    await until(lambda: completed(folder, batch_id, 3))
    await records.change(folder, batch_id, lambda r: records.discard(r, time.time()))
    record = await running
    assert (record.batch.status, record.batch.output_file_id) == ("cancelled", None)
    metas = [e.key async for e in folder.list("files/") if e.key.endswith("meta.json")]
    assert metas == [files.meta_key(record.batch.input_file_id)]


async def test_a_batch_discarded_while_it_is_published_keeps_no_files(
    folder: Folder, fast: WorkerSettings
) -> None:
    batch_id = await submit(folder, *numbered(3))

    async def discard(name: str, key: str) -> None:
        if name == "put" and key.endswith("meta.json"):
            await records.change(folder, batch_id, lambda r: records.discard(r, time.time()))

    async def nothing(name: str, key: str) -> None:
        return

    spying = Wrapped(folder, nothing, discard)
    record = await worker(spying, batch_id, FakeCompletions(), fast).live()
    assert (record.batch.status, record.batch.output_file_id) == ("cancelled", None)
    assert len([e async for e in folder.list("files/")]) == 2  # the input alone


async def test_a_stopped_worker_leaves_its_shards_to_the_next(
    folder: Folder, fast: WorkerSettings
) -> None:
    settings = replace(fast, stale_after=1000.0)
    batch_id = await submit(folder, *numbered(20))
    engine = FakeCompletions(Slow(quick=7))
    subject = worker(folder, batch_id, engine, settings, slot="a")
    running = asyncio.create_task(subject.live())
    await until(lambda: engine.running > 0 and engine.asked.total() > 7)
    subject.stop()
    record = await running
    assert record.batch.status == "in_progress"

    second = FakeCompletions()
    record = await worker(folder, batch_id, second, settings, slot="b").live()
    assert (await outcome(folder, record)).ids == [f"c{n}" for n in range(20)]
    assert second.asked.total() == 13


async def test_workers_share_a_batch(store: BatchStore, fast: WorkerSettings) -> None:
    # Nobody is taken for dead on a slow machine: what is asked twice is another test's.
    settings = replace(fast, shard_lines=10, concurrency=4, stale_after=30.0)
    batch_id = await submit(store, *numbered(60), parallelism=3)
    engines = [FakeCompletions(seconds=0.01) for _ in range(3)]
    workers = [
        worker(store, batch_id, engine, settings, slot=str(n)) for n, engine in enumerate(engines)
    ]
    ended = await asyncio.gather(*(each.live() for each in workers))
    assert {record.batch.status for record in ended} == {"completed"}
    assert (await outcome(store, ended[0])).ids == [f"c{n}" for n in range(60)]
    assert sum(engine.asked.total() for engine in engines) == 60
    assert sum(engine.asked.total() > 0 for engine in engines) >= 2


async def test_two_workers_in_one_place_by_mistake_do_no_harm(
    store: BatchStore, fast: WorkerSettings
) -> None:
    settings = replace(fast, shard_lines=10, concurrency=4)
    batch_id = await submit(store, *numbered(40))
    engine = FakeCompletions(seconds=0.01)
    workers = [worker(store, batch_id, engine, settings) for _ in range(2)]
    ended = await asyncio.gather(*(each.live() for each in workers))
    assert {record.batch.status for record in ended} == {"completed"}
    assert (await outcome(store, ended[0])).ids == [f"c{n}" for n in range(40)]


async def test_a_worker_that_wakes_after_its_lease_was_taken_changes_nothing(
    folder: Folder, fast: WorkerSettings
) -> None:
    wake, asleep = asyncio.Event(), asyncio.Event()

    async def sleep_before_commits(name: str, key: str) -> None:
        if name == "put" and "/seg/" in key:
            asleep.set()
            await wake.wait()

    async def nothing(name: str, key: str) -> None:
        return

    batch_id = await submit(folder, *numbered(10))
    sleeper_store = Wrapped(folder, sleep_before_commits, nothing)
    sleeper = asyncio.create_task(worker(sleeper_store, batch_id, FakeCompletions(), fast).live())
    await asleep.wait()

    async def different(request: Body) -> Answer:
        return completion({**request, "messages": [{"content": "second"}]})

    record = await worker(folder, batch_id, FakeCompletions(different), fast, slot="1").live()
    wake.set()
    assert await sleeper == record
    result = await outcome(folder, record)
    said = {line["response"]["body"]["choices"][0]["message"]["content"] for line in result.output}
    assert said == {"SECOND"}
    assert result.ids == [f"c{n}" for n in range(10)]


async def test_the_first_plan_written_is_everybodys(folder: Folder, fast: WorkerSettings) -> None:
    wake, asleep = asyncio.Event(), asyncio.Event()

    async def sleep_before_plan(name: str, key: str) -> None:
        if name == "put" and key.endswith("plan.bin"):
            asleep.set()
            await wake.wait()

    async def nothing(name: str, key: str) -> None:
        return

    batch_id = await submit(folder, *numbered(12))
    settings = replace(fast, shard_lines=4)
    late = Worker(
        Wrapped(folder, sleep_before_plan, nothing),
        batch_id,
        # Another template, another order.
        FakeCompletions(template=Template("{{ messages[-1].content[::-1] }}")),
        settings,
        slot="1",
    )
    running = asyncio.create_task(late.live())
    await asleep.wait()
    slow = FakeCompletions(Slow(quick=5))
    first = asyncio.create_task(worker(folder, batch_id, slow, settings).live())
    await until(lambda: exists(folder, f"batches/{batch_id}/commit/1.json"))
    plan = (await folder.get(f"batches/{batch_id}/plan.bin")).data
    first.cancel()
    wake.set()
    record = await running
    assert (await folder.get(f"batches/{batch_id}/plan.bin")).data == plan
    assert (await outcome(folder, record)).ids == [f"c{n}" for n in range(12)]


async def test_a_replacement_goes_on_at_once_and_others_wait(
    folder: Folder, fast: WorkerSettings
) -> None:
    settings = replace(fast, stale_after=3.0, renew_after=1000.0)
    for slot, waits in (("0", False), ("1", True)):
        batch_id = await submit(folder, *numbered(4))
        dead = worker(folder, batch_id, FakeCompletions(Slow(quick=0)), settings)
        running = asyncio.create_task(dead.live())
        await until(lambda b=batch_id: exists(folder, f"batches/{b}/commit/0.json"))  # type: ignore[misc]
        running.cancel()
        await asyncio.wait([running])
        began = time.monotonic()
        await worker(folder, batch_id, FakeCompletions(), settings, slot=slot).live()
        assert (time.monotonic() - began > 3.0) == waits


async def exists(store: BatchStore, key: str) -> bool:
    try:
        await store.head(key)
    except NotThere:
        return False
    return True


async def test_a_deleted_input_is_read_to_the_end_and_then_goes(
    folder: Folder, fast: WorkerSettings
) -> None:
    batch_id = await submit(folder, *numbered(3))
    record, _ = await records.load(folder, batch_id)
    await files.remove(folder, record.batch.input_file_id)
    assert await exists(folder, records.blob_key(record.batch.input_file_id))
    record = await worker(folder, batch_id, FakeCompletions(), fast).live()
    assert record.batch.status == "completed"
    assert not await exists(folder, records.blob_key(record.batch.input_file_id))


async def test_an_input_that_is_gone_fails_the_batch(folder: Folder, fast: WorkerSettings) -> None:
    batch_id = await submit(folder, *numbered(3))
    record, _ = await records.load(folder, batch_id)
    await folder.delete(records.blob_key(record.batch.input_file_id))
    record = await worker(folder, batch_id, FakeCompletions(), fast).live()
    assert record.batch.errors is not None
    assert record.batch.errors.data[0].code == "input_not_found"


def by_uri(folder: Path, uri: str, output: str | None = None) -> Record:
    now = time.time()
    return records.new_record(
        records.new_id("batch", now),
        now=now,
        endpoint="/v1/chat/completions",
        input_uri=f"file://{folder}/store/{uri}",
        output_uri=None if output is None else f"file://{folder}/store/{output}",
    )


async def test_a_uri_may_name_a_prefix_with_compressed_parts(
    folder: Folder, tmp_path: Path, fast: WorkerSettings
) -> None:
    lines = numbered(9)
    await folder.put("in/a.jsonl", b"\xef\xbb\xbf" + b"".join(lines[:3])[:-1])
    members = gzip.compress(b"".join(lines[3:5])) + gzip.compress(lines[5])
    await folder.put("in/b.jsonl.gz", members)
    await folder.put("in/c/d.jsonl", b"\xef\xbb\xbf" + b"".join(lines[6:]))
    await folder.put("in/readme.txt", b"not an input")
    record = by_uri(tmp_path, "in/", output="out")
    await records.create(folder, record)
    record = await worker(folder, record.id, FakeCompletions(), fast).live()
    result = await outcome(folder, record)
    assert result.ids == [f"c{n}" for n in range(9)]
    copy = await folder.get(f"out/{record.id}_output.jsonl")
    assert copy.data.count(b"\n") == 9


async def test_uris_may_be_in_another_store(
    folder: Folder, tmp_path: Path, fast: WorkerSettings
) -> None:
    other = Folder(FolderStore(path=str(tmp_path / "other" / "store")), durable=False)
    await other.put("in.jsonl", b"".join(numbered(4)))
    record = by_uri(tmp_path / "other", "in.jsonl", output="out")
    await records.create(folder, record)
    ended = await Worker(folder, record.id, FakeCompletions(), fast, slot="0", uris=other).live()
    assert (await outcome(folder, ended)).ids == [f"c{n}" for n in range(4)]
    assert (await other.get(f"out/{record.id}_output.jsonl")).data.count(b"\n") == 4
    assert [entry.key async for entry in other.list("batches/")] == []


@pytest.mark.parametrize(
    ("uri", "output", "code"),
    [
        ("nothing/", None, "input_not_found"),
        ("bad.jsonl.gz", None, "input_not_readable"),
        ("cut.jsonl.gz", None, "input_not_readable"),
        ("bomb.jsonl.gz", None, "input_too_large"),
        ("../outside.jsonl", None, "invalid_uri"),
        ("bad.jsonl.gz", "files/x", "invalid_uri"),
    ],
)
async def test_a_uri_that_can_not_be_read_fails_the_batch(
    folder: Folder, tmp_path: Path, fast: WorkerSettings, uri: str, output: str | None, code: str
) -> None:
    await folder.put("bad.jsonl.gz", b"no gzip at all")
    await folder.put("cut.jsonl.gz", gzip.compress(b"".join(numbered(1000)))[:-100])
    await folder.put("bomb.jsonl.gz", gzip.compress(bytes(20 << 20)))
    record = by_uri(tmp_path, uri, output)
    await records.create(folder, record)
    settings = replace(fast, max_bytes=4 << 20)
    record = await worker(folder, record.id, FakeCompletions(), settings).live()
    assert record.batch.status == "failed"
    assert record.batch.errors is not None
    assert record.batch.errors.data[0].code == code


async def test_counts_move_while_it_runs_and_only_up(folder: Folder, fast: WorkerSettings) -> None:
    batch_id = await submit(folder, *numbered(60))
    engine = FakeCompletions(seconds=0.01)
    settings = replace(fast, concurrency=2)
    running = asyncio.create_task(worker(folder, batch_id, engine, settings).live())
    seen = []
    while not running.done():
        record, _ = await records.load(folder, batch_id)
        seen.append(record.batch.request_counts.completed)
        await asyncio.sleep(0.01)
    assert seen == sorted(seen)
    assert len(set(seen)) > 5
