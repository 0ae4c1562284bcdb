"""What every BatchStore promises, on each kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from skirret_batch.store import BatchStore, Changed, NotThere, StoreRefused
from skirret_batch.upload import Upload

MIB = 1 << 20


async def _wins(writes: list[Awaitable[str]]) -> int:
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(result, str | Changed) for result in results), results
    return sum(isinstance(result, str) for result in results)


async def test_a_store_that_works_passes_its_probe(store: BatchStore) -> None:
    await store.probe()


async def test_what_is_put_is_read_back(store: BatchStore) -> None:
    etag = await store.put("a/b.json", b"one")
    blob = await store.get("a/b.json")
    assert (blob.data, blob.etag) == (b"one", etag)
    head = await store.head("a/b.json")
    assert (head.size, head.etag) == (3, etag)


async def test_what_is_not_there_says_so(store: BatchStore) -> None:
    for read in (store.get("no"), store.head("no"), store.read("no"), store.read("no", 1, 2)):
        with pytest.raises(NotThere):
            await read


async def test_an_unchanged_object_is_not_sent_again(store: BatchStore) -> None:
    etag = await store.put("a", b"one")
    assert await store.get_if_changed("a", etag) is None
    await store.put("a", b"two")
    changed = await store.get_if_changed("a", etag)
    assert changed is not None
    assert changed.data == b"two"


async def test_a_range_is_cut_at_the_end_of_the_object(store: BatchStore) -> None:
    await store.put("a", b"0123456789")
    assert await store.read("a", 2, 5) == b"234"
    assert await store.read("a", 8, 99) == b"89"
    assert await store.read("a", 10, 20) == b""
    assert await store.read("a", 4) == b"456789"
    assert await store.read("a", 4, 4) == b""


async def test_an_empty_object_is_an_object(store: BatchStore) -> None:
    await store.put("live/x", b"")
    assert (await store.get("live/x")).data == b""
    assert await store.read("live/x", 0, 10) == b""
    assert [entry.key async for entry in store.list("live/")] == ["live/x"]


async def test_a_conditional_write_needs_the_etag_that_was_read(store: BatchStore) -> None:
    first = await store.put_if_absent("a", b"1")
    second = await store.put_if_match("a", b"2", first)
    for write in (
        store.put_if_match("a", b"3", first),
        store.put_if_absent("a", b"3"),
        store.put_if_match("nothing", b"3", second),
    ):
        with pytest.raises(Changed):
            await write
    assert (await store.get("a")).data == b"2"


async def test_of_many_writers_with_one_etag_one_wins(store: BatchStore) -> None:
    etag = await store.put("race", b"0")
    writes = [store.put_if_match("race", b"%d" % n, etag) for n in range(1, 6)]
    assert await _wins(list(writes)) == 1


async def test_of_many_creators_one_wins(store: BatchStore) -> None:
    writes = [store.put_if_absent("race", b"%d" % n) for n in range(5)]
    assert await _wins(list(writes)) == 1


async def test_concurrent_increments_are_all_counted(store: BatchStore) -> None:
    await store.put("counter", b"0")

    async def increment(name: str) -> None:
        while True:
            blob = await store.get("counter")
            count = int(blob.data.split()[0]) + 1
            try:
                await store.put_if_match("counter", f"{count} {name}".encode(), blob.etag)
                return
            except Changed:
                continue

    await asyncio.gather(*(increment(str(n)) for n in range(6)))
    assert (await store.get("counter")).data.startswith(b"6 ")


async def test_a_delete_is_idempotent(store: BatchStore) -> None:
    await store.put("a/b/c", b"1")
    await store.delete("a/b/c")
    await store.delete("a/b/c")
    with pytest.raises(NotThere):
        await store.get("a/b/c")
    await store.put("a/b/c", b"2")


async def test_a_list_is_in_byte_order_and_begins_behind_a_key(store: BatchStore) -> None:
    for key in ("b/2", "b/10", "b/1/x", "c", "a"):
        await store.put(key, b"")
    assert [entry.key async for entry in store.list("b")] == ["b/1/x", "b/10", "b/2"]
    assert [entry.key async for entry in store.list("b/", "b/1/x")] == ["b/10", "b/2"]
    assert [entry.key async for entry in store.list("b/1")] == ["b/1/x", "b/10"]
    assert [entry.key async for entry in store.list("d/")] == []


async def test_folders_are_named_once_and_in_order(store: BatchStore) -> None:
    for name in ("x1", "x2", "x3"):
        await store.put(f"batches/{name}/batch.json", b"")
        await store.put(f"batches/{name}/seg/0/1-0.jsonl", b"")
    assert [name async for name in store.folders("batches/")] == ["x1", "x2", "x3"]
    assert [name async for name in store.folders("batches/", "x1")] == ["x2", "x3"]
    assert [name async for name in store.folders("nothing/")] == []


async def test_an_upload_becomes_visible_whole(store: BatchStore) -> None:
    upload = Upload(store, "big", part_size=5 * MIB)
    data = bytes(range(256)) * (11 * MIB // 256)
    for start in range(0, len(data), 777_777):
        await upload.write(data[start : start + 777_777])
    with pytest.raises(NotThere):
        await store.head("big")
    await upload.finish()
    pieces = [piece async for piece in store.stream("big")]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= MIB
    assert await store.read("big", 5 * MIB - 2, 5 * MIB + 2) == data[5 * MIB - 2 : 5 * MIB + 2]


async def test_a_small_upload_needs_no_parts(store: BatchStore) -> None:
    upload = Upload(store, "small", part_size=5 * MIB)
    await upload.write(b"abc")
    await upload.finish()
    assert (await store.get("small")).data == b"abc"


async def test_an_aborted_upload_leaves_nothing(store: BatchStore) -> None:
    upload = Upload(store, "big", part_size=5 * MIB)
    await upload.write(bytes(6 * MIB))
    assert [pending.key async for pending in store.uploads("big")] == ["big"]
    await upload.abort()
    await upload.abort()
    assert [pending async for pending in store.uploads("big")] == []
    with pytest.raises(NotThere):
        await upload.finish()
    with pytest.raises(NotThere):
        await store.head("big")


async def test_a_uri_outside_of_the_store_is_refused(store: BatchStore) -> None:
    for uri in (
        "s3://another/bucket",
        "file:///etc/passwd",
        "https://example.com/x",
        "s3://tests/",
    ):
        with pytest.raises(StoreRefused, match="outside this store"):
            store.key_of(uri)
