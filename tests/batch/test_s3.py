"""A bucket behind a network that fails: every fault there is, between us and a real S3 service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
from aiohttp import web

from skirret_api.tenants import S3Store
from skirret_batch.bucket import Bucket
from skirret_batch.s3 import S3
from skirret_batch.store import Changed, NotThere, Retries, StoreRefused, StoreUnavailable
from skirret_batch.testing.network import Spoiler
from skirret_batch.upload import Upload

pytestmark = pytest.mark.s3

MIB = 1 << 20
QUICK = Retries(seconds=10, first_pause=0.001, longest_pause=0.01)


@pytest.fixture
async def spoiled(spoiler: tuple[Spoiler, str], bucket: S3Store) -> AsyncIterator[S3]:
    prefix = f"t{uuid4().hex}"
    store = S3(bucket.model_copy(update={"endpoint": spoiler[1], "prefix": prefix}), QUICK)
    yield store
    await store.close()


def once(name: str, method: str) -> Callable[[web.Request], str]:
    """The fault on the first request with this method."""
    left = [name]
    return lambda request: left.pop() if left and request.method == method else ""


async def test_a_store_that_fails_half_the_time_still_works(
    spoiled: S3, spoiler: tuple[Spoiler, str]
) -> None:
    chance = random.Random(1)
    faults = ("slow down", "cut before", "cut after", "truncated", "", "", "", "")
    spoiler[0].fault = lambda request: chance.choice(faults)
    data = random.Random(2).randbytes(6 * MIB)
    upload = Upload(spoiled, "big", 5 * MIB)
    await upload.write(data)
    await upload.finish()
    assert await spoiled.read("big") == data
    for n in range(10):
        await spoiled.put_if_absent(f"small/{n}", b"%d" % n)
        etag = (await spoiled.get(f"small/{n}")).etag
        await spoiled.put_if_match(f"small/{n}", b"new %d" % n, etag)
    assert len([entry async for entry in spoiled.list("small/")]) == 10


async def test_a_conditional_write_whose_answer_was_lost_has_won(
    spoiled: S3, spoiler: tuple[Spoiler, str]
) -> None:
    spoiler[0].fault = once("cut after", "PUT")
    etag = await spoiled.put_if_absent("a", b"mine")
    spoiler[0].fault = once("cut after", "PUT")
    await spoiled.put_if_match("a", b"mine, too", etag)
    assert (await spoiled.get("a")).data == b"mine, too"


async def test_a_conditional_write_that_lost_has_lost_through_any_retry(
    spoiled: S3, spoiler: tuple[Spoiler, str]
) -> None:
    await spoiled.put_if_absent("a", b"theirs")
    spoiler[0].fault = once("cut before", "PUT")
    with pytest.raises(Changed):
        await spoiled.put_if_absent("a", b"mine")


async def test_a_complete_whose_answer_was_lost_has_published(
    spoiled: S3, spoiler: tuple[Spoiler, str]
) -> None:
    upload = await spoiled.begin("big")
    parts = [await spoiled.put_part("big", upload, 1, b"x" * 10)]
    spoiler[0].fault = once("cut after", "POST")
    await spoiled.complete("big", upload, parts)
    assert await spoiled.read("big") == b"x" * 10


async def test_a_truncated_read_goes_on_where_it_broke(
    spoiled: S3, spoiler: tuple[Spoiler, str]
) -> None:
    data = random.Random(3).randbytes(3 * MIB)
    await spoiled.put("a", data)
    spoiler[0].fault = once("truncated", "GET")
    pieces = [piece async for piece in spoiled.stream("a", 5)]
    assert b"".join(pieces) == data[5:]


async def test_an_object_overwritten_while_it_is_read_is_noticed(
    spoiled: S3, spoiler: tuple[Spoiler, str]
) -> None:
    await spoiled.put("a", b"x" * 3 * MIB)
    spoiler[0].fault = once("truncated", "GET")
    reader = spoiled.stream("a")
    await anext(reader)
    await spoiled.put("a", b"y" * 3 * MIB)
    with pytest.raises(Changed):
        async for _ in reader:
            pass


async def test_a_store_that_stays_away_is_unavailable(
    bucket: S3Store, spoiler: tuple[Spoiler, str]
) -> None:
    spoiler[0].fault = lambda request: "slow down"
    settings = bucket.model_copy(update={"endpoint": spoiler[1]})
    store = S3(settings, Retries(seconds=0.2, first_pause=0.01, longest_pause=0.05))
    with pytest.raises(StoreUnavailable, match="doesn't answer GET a: Slow down"):
        await store.get("a")
    await store.close()
    assert spoiler[0].requests > 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"secretKey": "wrong"}, "signature"),
        ({"accessKey": "nobody"}, "access key"),
        ({"accessKey": "", "secretKey": ""}, "Denied"),
    ],
)
async def test_wrong_credentials_are_said_at_once_and_never_shown(
    bucket: S3Store, change: dict[str, str], says: str
) -> None:
    store = S3(bucket.model_copy(update=change), QUICK)
    with pytest.raises(StoreRefused, match=says) as error:
        await store.probe()
    assert "X-Amz" not in str(error.value)
    await store.close()


async def test_a_bucket_that_is_not_there_is_named(bucket: S3Store) -> None:
    store = S3(bucket.model_copy(update={"bucket": "nowhere"}), QUICK)
    with pytest.raises(StoreRefused, match=r"bucket nowhere at .*does not exist"):
        await store.get("a")
    await store.close()


async def test_a_store_without_conditional_writes_is_refused_by_name(
    bucket: S3Store, spoiler: tuple[Spoiler, str]
) -> None:
    async def ignore(request: web.Request) -> web.Response:
        return web.Response(headers={"ETag": '"1"'})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", ignore)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    store = S3(bucket.model_copy(update={"endpoint": endpoint}), QUICK)
    with pytest.raises(StoreRefused, match="tests at .* ignores If-None-Match"):
        await store.probe()
    await store.close()
    await runner.cleanup()


async def test_a_store_without_if_match_is_used_all_the_same(
    bucket: S3Store, spoiler: tuple[Spoiler, str]
) -> None:
    settings = bucket.model_copy(update={"endpoint": spoiler[1], "prefix": uuid4().hex})
    spoiler[0].ignored = "If-Match"
    for _ in range(2):  # the second finds what the first agreed on, and an able service
        store = Bucket(S3(settings, QUICK))
        etag = await store.put_if_absent("record", b"0")
        newer = await store.put_if_match("record", b"1", etag)
        with pytest.raises(Changed):
            await store.put_if_match("record", b"2", etag)
        assert (await store.get("record")).data == b"1"
        assert [entry.etag async for entry in store.list("")] == [newer]
        await store.delete("record")
        await store.close()
        spoiler[0].ignored = ""


async def test_a_store_that_lost_its_compare_and_set_is_refused(
    bucket: S3Store, spoiler: tuple[Spoiler, str]
) -> None:
    settings = bucket.model_copy(update={"endpoint": spoiler[1], "prefix": uuid4().hex})
    for ignored in ("", "If-Match"):
        spoiler[0].ignored = ignored
        store = Bucket(S3(settings, QUICK))
        if ignored:
            with pytest.raises(StoreRefused, match="no longer does"):
                await store.put("a", b"")
        else:
            await store.put("a", b"")
        await store.close()


async def test_a_prefix_is_all_a_tenant_sees(bucket: S3Store) -> None:
    name = uuid4().hex
    one, two = (
        S3(bucket.model_copy(update={"prefix": f"{name}/{team}/"}), QUICK) for team in ("a", "b")
    )
    await asyncio.gather(one.put("x", b"1"), two.put("y", b"2"))
    assert [entry.key async for entry in one.list("")] == ["x"]
    with pytest.raises(NotThere):
        await one.get("y")
    assert one.key_of(f"s3://tests/{name}/a/in.jsonl") == "in.jsonl"
    with pytest.raises(StoreRefused):
        one.key_of(f"s3://tests/{name}/b/in.jsonl")
    await one.close()
    await two.close()


async def test_keys_may_hold_any_character(bucket: S3Store) -> None:
    store = S3(bucket.model_copy(update={"prefix": uuid4().hex}), QUICK)
    for key in ("a b+c", "é/漢.jsonl", "p%20q", "x&y=z?"):
        await store.put(key, key.encode())
        assert (await store.get(key)).data == key.encode()
        assert key in [entry.key async for entry in store.list("")]
    await store.close()


async def test_lists_come_whole_whatever_the_page(bucket: S3Store) -> None:
    store = S3(bucket.model_copy(update={"prefix": uuid4().hex}), QUICK, page=2)
    keys = [f"many/{n}/{name}" for n in range(3) for name in ("a", "b")]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    assert [entry.key async for entry in store.list("many/")] == keys
    assert [name async for name in store.folders("many/")] == ["0", "1", "2"]
    await store.close()
