"""The states of a batch, and what may follow what."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skirret_api.openai import TERMINAL, BatchError, BatchUsage
from skirret_batch import record as records
from skirret_batch.record import CustomResource, Progress, Record, Transition
from skirret_batch.store import BatchStore, Changed, NotThere, StoreError

NOW = 1_800_000_000
TIMES = (
    *("created_at", "in_progress_at", "finalizing_at", "cancelling_at"),
    *("completed_at", "failed_at", "expired_at", "cancelled_at"),
)
CR = CustomResource(namespace="team", name="job", uid="u-1")


def record(now: float = NOW, **options: object) -> Record:
    return records.new_record(
        records.new_id("batch", now),
        now=now,
        endpoint="/v1/chat/completions",
        input_file_id="file-x",
        **options,  # type: ignore[arg-type]
    )


def started(total: int = 3) -> Record:
    return records.start(record(), model="m", total=total, now=NOW + 1)


def ended(it: Record, completed: int, failed: int = 0) -> Record:
    return records.end(
        it,
        completed=completed,
        failed=failed,
        usage=BatchUsage(),
        output_file_id="file-o",
        error_file_id=None,
        now=NOW + 9,
    )


# Every transition there is, with its arguments drawn.
MOVES = st.one_of(
    st.just(lambda it, now: records.start(it, model="m", total=9, now=now)),
    st.just(lambda it, now: records.fail(it, [BatchError(code="c", message="m")], now)),
    st.builds(
        lambda done, bad: (
            lambda it, now: records.count(
                it, completed=done, failed=bad, usage=BatchUsage(), progress=Progress()
            )
        ),
        st.integers(0, 6),
        st.integers(0, 3),
    ),
    st.just(lambda it, now: records.cancel(it, now)),
    st.just(lambda it, now: records.discard(it, now)),
    st.just(lambda it, now: records.finalize(it, now)),
    st.just(lambda it, now: records.link(it, CR)),
    st.just(lambda it, now: records.settle_source(it, "a")),
    st.builds(
        lambda done: (
            lambda it, now: records.end(
                it,
                completed=done,
                failed=0,
                usage=BatchUsage(),
                output_file_id="file-o",
                error_file_id=None,
                now=now,
            )
        ),
        st.integers(0, 9),
    ),
)


@given(st.lists(st.tuples(MOVES, st.integers(-100, 1000)), max_size=12))
def test_no_order_of_transitions_breaks_a_record(moves: list) -> None:  # type: ignore[type-arg]
    it = record()
    for move, clock in moves:  # clocks of many machines, some of them wrong
        before = it
        try:
            it = move(before, NOW + clock)
        except Transition:
            continue
        stamps = {name: getattr(it.batch, name) for name in TIMES}
        for name, stamp in stamps.items():
            earlier = getattr(before.batch, name)
            assert earlier is None or earlier == stamp, f"{name} was set twice"
            assert stamp is None or stamp >= it.batch.created_at, f"{name} is before creation"
        if before.is_terminal:
            assert it.batch == before.batch
        if it.is_terminal:
            last = stamps[f"{it.batch.status}_at"]
            assert last == max(stamp for stamp in stamps.values() if stamp is not None)
        counts, counted = before.batch.request_counts, it.batch.request_counts
        if not it.is_terminal:
            assert counted.completed + counted.failed >= counts.completed + counts.failed
        assert (it.batch.output_file_id is None) or it.is_terminal
        assert Record.model_validate_json(records.encode(it)) == it


def test_a_batch_whose_lines_are_all_answered_is_completed() -> None:
    it = ended(records.finalize(started(), NOW + 5), completed=2, failed=1)
    assert it.batch.status == "completed"
    assert it.batch.completed_at == NOW + 9


def test_a_batch_with_lines_left_has_expired() -> None:
    it = ended(records.finalize(started(), NOW + 5), completed=1)
    assert (it.batch.status, it.batch.expired_at) == ("expired", NOW + 9)
    assert it.batch.request_counts.model_dump() == {"total": 3, "completed": 1, "failed": 0}


def test_a_batch_being_cancelled_ends_cancelled_even_when_all_lines_are_answered() -> None:
    it = ended(records.cancel(records.finalize(started(), NOW + 5), NOW + 6), completed=3)
    assert (it.batch.status, it.batch.output_file_id) == ("cancelled", "file-o")


def test_a_cancel_is_idempotent_until_the_batch_ended_otherwise() -> None:
    cancelling = records.cancel(started(), NOW + 2)
    assert records.cancel(cancelling, NOW + 3) is cancelling
    cancelled = ended(cancelling, completed=0)
    assert records.cancel(cancelled, NOW + 30) is cancelled
    completed = ended(records.finalize(started(), NOW + 5), completed=3)
    with pytest.raises(Transition, match="Cannot cancel a batch with status 'completed'"):
        records.cancel(completed, NOW + 30)


def test_a_bad_input_fails_a_batch_and_one_being_cancelled_is_cancelled() -> None:
    error = BatchError(code="empty_file", message="m")
    failed = records.fail(record(), [error], NOW + 1)
    assert failed.batch.errors is not None
    assert failed.batch.errors.data == [error]
    cancelled = records.fail(records.cancel(record(), NOW), [error], NOW + 1)
    assert (cancelled.batch.status, cancelled.batch.errors) == ("cancelled", None)


def test_counts_are_zero_before_anything_is_known() -> None:
    assert record().batch.request_counts.model_dump() == {"total": 0, "completed": 0, "failed": 0}


@pytest.mark.parametrize(
    ("window", "seconds"),
    [("24h", 86400), ("90s", 90), ("5m", 300), ("14d", 1209600)]
    + [(bad, None) for bad in ("15d", "0s", "24", "h", "1w", "-1h", "24h ", "99999s", "１h")],
)
def test_windows(window: str, seconds: int | None) -> None:
    assert records.window_seconds(window) == seconds


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/v1/v1/completions", None),
        ("/v1/embeddings", None),
        ("chat/completions", None),
        ("", None),
    ],
)
def test_a_url_is_known_with_and_without_its_version(url: str, endpoint: str | None) -> None:
    assert records.endpoint_of(url) == endpoint


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=2, unique=True))
def test_later_ids_sort_first(times: list[int]) -> None:
    early, late = sorted(time / 1000 for time in times)
    assert records.new_id("batch", late) < records.new_id("batch", early)
    assert records.id_time(records.new_id("file", late)) == pytest.approx(late, abs=0.002)


def test_the_id_of_a_cr_follows_from_its_uid_and_age() -> None:
    assert records.id_for_cr("u", NOW) == records.id_for_cr("u", NOW)
    assert records.id_for_cr("u", NOW) != records.id_for_cr("v", NOW)


def test_fields_of_a_newer_release_survive_a_change() -> None:
    data = records.encode(record()).replace(b'"priority":0', b'"priority":0,"invented":{"a":1}')
    it = records.cancel(Record.model_validate_json(data), NOW)
    assert b'"invented":{"a":1}' in records.encode(it)


async def test_a_change_is_made_on_what_is_there_now(store: BatchStore) -> None:
    it = started()
    await records.create(store, it)
    results = await asyncio.gather(
        records.change(store, it.id, lambda r: records.cancel(r, NOW + 2)),
        records.change(store, it.id, lambda r: records.link(r, CR)),
        records.change(store, it.id, lambda r: records.settle_source(r, "x")),
    )
    final, _ = await records.load(store, it.id)
    assert final.batch.status == "cancelling"
    assert final.cr == CR
    assert final in results


async def test_a_record_is_created_once(store: BatchStore) -> None:
    it = record()
    await records.create(store, it)
    with pytest.raises(Changed):
        await records.create(store, it.model_copy(update={"priority": 1}))
    with pytest.raises(NotThere):
        await records.load(store, "batch_nothing")


async def test_live_lists_what_has_not_ended_newest_first(store: BatchStore) -> None:
    old, new, dead = record(NOW), record(NOW + 5), record(NOW + 9)
    for it in (old, new, dead):
        await records.create(store, it)
    await records.change(store, dead.id, lambda r: records.discard(r, NOW + 10))
    await store.put(records.live_key(dead.id), b"")  # whoever ended it died before this delete
    await store.put(records.live_key("batch_never"), b"")

    found = await records.live(store, {})

    assert list(found) == [new.id, old.id]
    assert await records.live(store, found) == found
    assert dead.id not in [entry.key async for entry in store.list("live/")]


async def test_a_record_nobody_can_read_does_not_hide_the_others(
    store: BatchStore, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = record(NOW), record(NOW + 5)
    for it in (good, bad):
        await records.create(store, it)
    await store.put(records.record_key(bad.id), b'{"batch": 1}')
    assert list(await records.live(store, {})) == [good.id]
    assert bad.id in caplog.text
    with pytest.raises(StoreError, match="not one we can read"):
        await records.load(store, bad.id)


async def test_live_transfers_only_what_changed(store: BatchStore) -> None:
    one, two = record(NOW), record(NOW + 5)
    await records.create(store, one)
    await records.create(store, two)
    before = await records.live(store, {})
    await records.change(store, one.id, lambda r: records.cancel(r, NOW + 6))
    after = await records.live(store, before)
    assert after[two.id] is before[two.id]
    assert after[one.id][0].batch.status == "cancelling"


def test_statuses_without_a_way_out_are_the_terminal_ones() -> None:
    assert frozenset({"completed", "failed", "expired", "cancelled"}) == TERMINAL
