"""What the sweep takes away, and what it must not."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

import pytest

from skirret_api.openai import FileObject
from skirret_batch import files
from skirret_batch import record as records
from skirret_batch.asked import BatchRequest
from skirret_batch.folder import Folder
from skirret_batch.reservation import Once
from skirret_batch.store import BatchStore, NotThere, StoreError
from skirret_batch.sweep import clear, sweep
from skirret_batch.testing import FakeCompletions, Killed, Wrapped, chat_line, outcome, submit
from skirret_batch.worker import Worker, WorkerSettings

DAY = 86_400


async def keys(store: BatchStore, prefix: str = "") -> list[str]:
    return [entry.key async for entry in store.list(prefix)]


async def stored(store: BatchStore, expires_at: int | None, made: float) -> str:
    file_id = records.new_id("file", made)
    await store.put(records.blob_key(file_id), b"x")
    file = FileObject(
        id=file_id,
        bytes=1,
        created_at=int(made),
        expires_at=expires_at,
        filename="f",
        purpose="batch",
    )
    await files.publish(store, file)
    return file_id


async def test_expired_files_go_and_others_stay(store: BatchStore) -> None:
    now = time.time()
    expired = await stored(store, int(now) - 1, now - DAY)
    kept = [await stored(store, None, now - DAY), await stored(store, int(now) + 60, now - DAY)]
    await sweep(store, now)
    left = await keys(store, "files/")
    assert not [key for key in left if expired in key]
    assert len(left) == 2 * len(kept)


async def test_an_expired_input_stays_while_a_live_batch_reads_it(store: BatchStore) -> None:
    now = time.time()
    file_id = await stored(store, int(now) - 1, now - DAY)
    record = records.new_record(
        records.new_id("batch", now), now=now, endpoint="/v1/completions", input_file_id=file_id
    )
    await records.create(store, record)
    await sweep(store, now)
    assert records.blob_key(file_id) in await keys(store, "files/")


async def test_a_blob_that_never_became_a_file_goes_after_a_day(store: BatchStore) -> None:
    now = time.time()
    old, new = records.new_id("file", now - 2 * DAY), records.new_id("file", now)
    for file_id in (old, new):
        await store.put(records.blob_key(file_id), b"x")
    await sweep(store, now)
    assert await keys(store, "files/") == [records.blob_key(new)]


async def test_of_an_ended_batch_the_record_and_its_files_stay(
    store: BatchStore, fast: WorkerSettings
) -> None:
    batch_id = await submit(store, *(chat_line(str(n)) for n in range(5)))
    live = await submit(store, chat_line("a"))
    await store.put(f"batches/{live}/index.bin", b"x")
    record = await Worker(store, batch_id, FakeCompletions(), fast, slot="0").live()
    assert len(await keys(store, f"batches/{batch_id}/")) > 3
    await sweep(store, time.time())
    assert await keys(store, f"batches/{batch_id}/") == [records.record_key(batch_id)]
    assert len((await outcome(store, record)).output) == 5
    assert f"batches/{live}/index.bin" in await keys(store, f"batches/{live}/")


async def test_old_reservations_and_markers_of_nothing_go(store: BatchStore) -> None:
    now = time.time()
    wanted = BatchRequest("file-1", "/v1/chat/completions", "24h", None, None)
    await Once(wanted, key="k", is_retry=False).reserve(store, now - 2 * DAY)
    await Once(wanted, key=None, is_retry=False).reserve(store, now)
    await store.put(records.live_key(records.new_id("batch", now - 2 * DAY)), b"")
    await store.put(records.live_key(records.new_id("batch", now)), b"")
    await sweep(store, now)
    assert len(await keys(store, "requests/")) == 1
    assert len(await keys(store, "live/")) == 1


async def test_abandoned_uploads_go_after_a_day(store: BatchStore) -> None:
    upload = await store.begin("files/x/blob")
    await sweep(store, time.time() + 60)
    assert [pending.upload async for pending in store.uploads("files/")] == [upload]
    await sweep(store, time.time() + 2 * DAY)
    assert [pending async for pending in store.uploads("files/")] == []


async def test_a_discarded_batch_leaves_no_upload_of_its_files(store: BatchStore) -> None:
    batch_id = await submit(store, chat_line("a"))
    record = await records.change(store, batch_id, lambda it: records.finalize(it, time.time()))
    await store.begin(records.blob_key(records.result_id(record, "output")))
    await records.change(store, batch_id, lambda it: records.discard(it, time.time()))
    await clear(store, batch_id)
    assert [pending async for pending in store.uploads("files/")] == []


@pytest.mark.parametrize("lives", [False, True], ids=["dies", "goes on"])
async def test_a_batch_deleted_at_any_moment_leaves_its_record_alone(
    folder: Folder, fast: WorkerSettings, lives: bool
) -> None:
    """Whatever its worker was doing, whether it died then or went on beside the deletion."""
    moment = 0
    while (batch_id := await deleted(folder, fast, moment, lives)) is not None:
        moment += 1
        await sweep(folder, time.time())
        record, _ = await records.load(folder, batch_id)
        assert record.batch.status == "cancelled"
        assert [upload async for upload in folder.uploads("")] == []
        assert await keys(folder, "batches/") == [records.record_key(batch_id)]
        made = [records.blob_key(record.batch.input_file_id)]
        assert [key for key in await keys(folder, "files/") if key.endswith("blob")] == made
        await files.erase(folder, record.batch.input_file_id)
        await folder.delete(records.record_key(batch_id))
    assert moment > 15  # how many there are depends on the clock


async def deleted(folder: Folder, fast: WorkerSettings, moment: int, lives: bool) -> str | None:
    """A batch whose BatchJob was deleted before its worker's n-th operation; None: too late."""
    settings = replace(fast, shard_lines=4, flush_bytes=600, part_size=1024, concurrency=2)
    batch_id = await submit(folder, *(chat_line(f"c{n}", f"t{n}") for n in range(8)))
    operations = iter(range(100_000))

    async def discard() -> None:
        await records.change(folder, batch_id, lambda it: records.discard(it, time.time()))
        await clear(folder, batch_id)

    async def before(name: str, key: str) -> None:
        operation = next(operations)
        if lives and operation == moment:
            await discard()
        elif not lives and operation >= moment:
            raise Killed

    async def after(name: str, key: str) -> None:
        return

    spied = Wrapped(folder, before, after)
    with suppress(Killed, StoreError):
        await Worker(spied, batch_id, FakeCompletions(), settings, slot="0").live()
    if (await records.load(folder, batch_id))[0].batch.status == "completed":
        return None
    await discard()
    return batch_id


async def test_an_output_file_expires_when_the_batch_says(
    store: BatchStore, fast: WorkerSettings
) -> None:
    batch_id = await submit(store, chat_line("a"), output_expires_after=3600)
    worker = Worker(store, batch_id, FakeCompletions(), replace(fast), slot="0")
    record = await worker.live()
    output = record.batch.output_file_id
    assert output is not None
    file = await files.retrieve(store, output, time.time())
    assert file.expires_at == file.created_at + 3600
    with pytest.raises(NotThere):
        await files.retrieve(store, output, time.time() + 3601)
