"""A batch's record: its state, the transitions it may take, and its place in the store.

The record is the only truth of a batch. Any process may change it, through `change` below: read,
decide with a pure transition, write by compare-and-set, again when somebody else was faster.

validating ──► in_progress ──► finalizing ──► completed | expired
    │  │           │  │            │
    │  └───────────┴──┼────────────┴──► cancelling ──► cancelled
    └─────────────────┴──► failed              (validating ──► finalizing ──► expired, too)
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from skirret_api.openai import (
    BATCH_ENDPOINTS,
    TERMINAL,
    Batch,
    BatchError,
    BatchErrors,
    BatchStatus,
    BatchUsage,
    InputTokensDetails,
    RequestCounts,
)
from skirret_batch.store import BatchStore, Changed, NotThere, StoreError

log = logging.getLogger(__name__)

ResultKind = Literal["output", "error"]

LIVE = "live/"
BATCHES = "batches/"
OWN_FOLDERS = ("batches/", "files/", "live/", "requests/")  # no place for a user's copies
LONGEST_WINDOW = 14 * 86_400  # seconds

_HORIZON_MS = (1 << 48) - 1
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AT_ONCE = 16  # records read together


class Transition(Exception):
    """This change can't be made from the state the record is in."""


class CustomResource(BaseModel):
    """The BatchJob that stands for this record."""

    model_config = ConfigDict(extra="forbid")

    namespace: str
    name: str
    uid: str


class Progress(BaseModel):
    """What the worker last said of its work; never read to decide anything."""

    model_config = ConfigDict(extra="allow")

    tokens_per_second: float = 0.0
    eta_seconds: float | None = None


class Record(BaseModel):
    """`batches/{id}/batch.json`. Fields of a newer release survive a change by an older one."""

    model_config = ConfigDict(extra="allow")

    batch: Batch
    input_uri: str | None = None  # of a BatchJob with `input.uri`; else batch.input_file_id
    source: str | None = None  # key of the one object with the lines; a URI is copied to it first
    output_uri: str | None = None  # where a BatchJob wants copies of its files
    output_expires_after: int | None = None  # seconds
    cr: CustomResource | None = None
    parallelism: int = 1
    priority: int = 0
    input_tokens: int = 0  # of all prompts, estimated; 0 until the input was read
    progress: Progress = Progress()
    created_by: Literal["api", "cr"] = "api"

    @property
    def id(self) -> str:
        return self.batch.id

    @property
    def is_terminal(self) -> bool:
        return self.batch.status in TERMINAL


def new_id(kind: str, now: float, random: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """`kind-` or `kind_` and 28 hex digits; later ids sort first, so LIST is newest first.

    Files are `file-…` and batches `batch_…`, as OpenAI writes them.
    """
    separator = "-" if kind == "file" else "_"
    reversed_time = _HORIZON_MS - int(now * 1000)
    return f"{kind}{separator}{reversed_time:012x}{random(8).hex()}"


def derived_id(kind: str, now: float, seed: str) -> str:
    """The id that everybody gives the thing `seed` names."""
    return new_id(kind, now, lambda size: sha256(seed.encode()).digest()[:size])


def id_for_cr(uid: str, created: float) -> str:
    """The id of the batch of a BatchJob with this uid and creation time."""
    return derived_id("batch", created, uid)


def result_id(record: Record, kind: ResultKind) -> str:
    """The id of the file with a batch's answers or errors, the same whoever makes it."""
    return derived_id("file", results_time(record), f"{record.id}:{kind}")


def results_time(record: Record) -> int:
    """When the files of an ended or ending batch were made, whoever makes them."""
    batch = record.batch
    return batch.finalizing_at or batch.cancelling_at or batch.created_at


def id_time(object_id: str) -> float | None:
    """When an id was made, in seconds since the epoch; None for one that isn't ours."""
    match = re.fullmatch(r"(?:file-|batch_)([0-9a-f]{12})[0-9a-f]{16}", object_id)
    return (_HORIZON_MS - int(match[1], 16)) / 1000 if match else None


def folder_of(batch_id: str) -> str:
    return f"batches/{batch_id}/"


def record_key(batch_id: str) -> str:
    return f"batches/{batch_id}/batch.json"


def live_key(batch_id: str) -> str:
    return f"{LIVE}{batch_id}"


def blob_key(file_id: str) -> str:
    return f"files/{file_id}/blob"


def endpoint_of(url: str) -> str | None:
    """The endpoint that a URL with or without `/v1` means; None for one batches don't have."""
    endpoint = "/v1" + url.removeprefix("/v1")
    return endpoint if endpoint in BATCH_ENDPOINTS else None


def window_seconds(window: str) -> int | None:
    """The length of a completion window such as `24h` or `90s`; None for anything else."""
    match = re.fullmatch(r"([0-9]{1,4})([smhd])", window)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    return seconds if 0 < seconds <= LONGEST_WINDOW else None


def new_record(
    batch_id: str,
    *,
    now: float,
    endpoint: str,
    completion_window: str = "24h",
    input_file_id: str | None = None,
    input_uri: str | None = None,
    output_uri: str | None = None,
    output_expires_after: int | None = None,
    metadata: dict[str, str] | None = None,
    parallelism: int = 1,
    priority: int = 0,
    cr: CustomResource | None = None,
    created_by: Literal["api", "cr"] = "api",
) -> Record:
    """A batch about to be validated. Raises ValueError for an endpoint or window we don't have."""
    known, seconds = endpoint_of(endpoint), window_seconds(completion_window)
    if known is None:
        raise ValueError(f"endpoint {endpoint!r} is none of {', '.join(BATCH_ENDPOINTS)}")
    if seconds is None:
        raise ValueError(f"completion window {completion_window!r} is not like 24h, up to 14d")
    if (input_file_id is None) == (input_uri is None):
        raise ValueError("a batch has one input: a file or a URI")
    return Record(
        batch=Batch(
            id=batch_id,
            endpoint=known,
            input_file_id=input_file_id or input_uri or "",
            completion_window=completion_window,
            status="validating",
            created_at=int(now),
            expires_at=int(now) + seconds,
            metadata=metadata,
        ),
        input_uri=input_uri,
        source=blob_key(input_file_id) if input_file_id else None,
        output_uri=output_uri,
        output_expires_after=output_expires_after,
        cr=cr,
        parallelism=parallelism,
        priority=priority,
        created_by=created_by,
    )


# Allowed moves. A terminal state has none.
_NEXT: dict[BatchStatus, frozenset[BatchStatus]] = {
    "validating": frozenset({"in_progress", "failed", "cancelling", "finalizing"}),
    "in_progress": frozenset({"finalizing", "cancelling", "failed"}),
    "finalizing": frozenset({"completed", "expired", "failed", "cancelling"}),
    "cancelling": frozenset({"cancelled"}),
}


def move(record: Record, status: BatchStatus, now: float) -> Record:
    """The record in its next state, that state's time set once. Raises Transition."""
    batch = record.batch
    if status not in _NEXT.get(batch.status, frozenset()):
        raise Transition(f"batch {batch.id} is {batch.status}; it can't become {status}")
    # Whoever made the last move may have a faster clock: times never run backwards.
    times = (
        batch.created_at,
        batch.in_progress_at,
        batch.finalizing_at,
        batch.cancelling_at,
    )
    stamp = max(int(now), *(time for time in times if time is not None))
    return _with(record, status=status, **{f"{status}_at": stamp})


def settle_source(record: Record, key: str) -> Record:
    """Where the lines are read from; the first answer is everybody's."""
    return record.model_copy(update={"source": record.source or key})


def measure(record: Record, input_tokens: int) -> Record:
    """The input was read."""
    return record.model_copy(update={"input_tokens": input_tokens})


def start(record: Record, *, model: str, total: int, now: float) -> Record:
    """The lines are known: `total` of them, for one model. A batch on its end keeps its state."""
    if record.is_terminal:
        return record
    counts = record.batch.request_counts.model_copy(update={"total": total})
    known = _with(record, model=model or None, request_counts=counts)
    return move(known, "in_progress", now) if record.batch.status == "validating" else known


def fail(record: Record, errors: list[BatchError], now: float) -> Record:
    """The input can't be run. A batch that was being cancelled ends as cancelled, without files."""
    if record.batch.status == "cancelling":
        return move(record, "cancelled", now)
    return _with(move(record, "failed", now), errors=BatchErrors(data=errors))


def count(
    record: Record, *, completed: int, failed: int, usage: BatchUsage, progress: Progress
) -> Record:
    """What is committed so far; a stale, smaller count changes nothing."""
    counts = record.batch.request_counts
    if record.is_terminal or completed + failed < counts.completed + counts.failed:
        return record
    counts = counts.model_copy(update={"completed": completed, "failed": failed})
    counted = _with(record, request_counts=counts, usage=usage)
    return counted.model_copy(update={"progress": progress})


def cancel(record: Record, now: float) -> Record:
    """What a user's cancel does. Raises Transition for a batch that ended otherwise."""
    if record.batch.status in ("cancelling", "cancelled"):
        return record
    if record.is_terminal:
        raise Transition(f"Cannot cancel a batch with status '{record.batch.status}'.")
    return move(record, "cancelling", now)


def discard(record: Record, now: float) -> Record:
    """Its BatchJob was deleted: cancelled at once, and nothing is published."""
    return record if record.is_terminal else move(cancel(record, now), "cancelled", now)


def finalize(record: Record, now: float) -> Record:
    """No more lines are run. A batch being cancelled, or there already, stays as it is."""
    if record.batch.status in ("finalizing", "cancelling"):
        return record
    return move(record, "finalizing", now)


def end(
    record: Record,
    *,
    completed: int,
    failed: int,
    usage: BatchUsage,
    output_file_id: str | None,
    error_file_id: str | None,
    now: float,
) -> Record:
    """The terminal state with its files. Raises Transition when there is one already."""
    total = record.batch.request_counts.total
    status: BatchStatus = "completed" if completed + failed == total else "expired"
    if record.batch.status == "cancelling":
        status = "cancelled"
    ended = _with(
        move(record, status, now),
        request_counts=RequestCounts(total=total, completed=completed, failed=failed),
        usage=usage,
        output_file_id=output_file_id,
        error_file_id=error_file_id,
    )
    return ended.model_copy(update={"progress": Progress(eta_seconds=0.0)})


def link(record: Record, cr: CustomResource) -> Record:
    """The BatchJob that was made for a batch of the API."""
    return record.model_copy(update={"cr": cr})


def usage_of(prompt: int, cached: int, completion: int, predicted: int) -> BatchUsage:
    """Tokens as the batch object shows them; `predicted`: what the plan hoped to find cached."""
    return BatchUsage(
        input_tokens=prompt,
        input_tokens_details=InputTokensDetails(
            cached_tokens=cached, predicted_cached_tokens=predicted
        ),
        output_tokens=completion,
        total_tokens=prompt + completion,
    )


async def load(store: BatchStore, batch_id: str) -> tuple[Record, str]:
    """The record and its ETag. Raises NotThere, and StoreError for one we can't read."""
    blob = await store.get(record_key(batch_id))
    return decode(blob.data), blob.etag


async def live(
    store: BatchStore, known: Mapping[str, tuple[Record, str]]
) -> dict[str, tuple[Record, str]]:
    """Every batch that has not ended, newest first, by id; `known` is what this gave last time.

    Only a record that changed is transferred. The marker of one that ended is removed.
    """
    ids = [entry.key.removeprefix(LIVE) async for entry in store.list(LIVE)]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(batch_id: str) -> tuple[Record, str] | None:
        before = known.get(batch_id)
        async with gate:
            try:
                blob = await store.get_if_changed(record_key(batch_id), before[1] if before else "")
            except NotThere:  # its creator is between marker and record, or died there
                return None
            if blob is None:
                return before
            try:
                record = decode(blob.data)
            except StoreError as error:  # must not hide the others
                log.error("batch %s: %s", batch_id, error)
                return None
            if record.is_terminal:
                await store.delete(live_key(batch_id))
                return None
            return record, blob.etag

    found = await asyncio.gather(*map(read, ids))
    return {key: value for key, value in zip(ids, found, strict=True) if value is not None}


async def change(
    store: BatchStore, batch_id: str, transition: Callable[[Record], Record], tries: int = 20
) -> Record:
    """Applies a pure transition by compare-and-set; it may be called more than once.

    Raises NotThere, whatever `transition` raises, and Changed when every try lost.
    """
    for _ in range(tries):
        record, etag = await load(store, batch_id)
        after = transition(record)
        if after == record:
            return record
        try:
            await store.put_if_match(record_key(batch_id), encode(after), etag)
        except Changed:
            continue
        if after.is_terminal:
            await store.delete(live_key(batch_id))
        return after
    raise Changed(f"batch {batch_id}: every one of {tries} writes was overtaken by another")


async def create(store: BatchStore, record: Record) -> None:
    """Puts the live marker, then the record, so that no record is ever without one.

    Raises Changed when a record with this id exists.
    """
    await store.put(live_key(record.id), b"")
    await store.put_if_absent(record_key(record.id), encode(record))


def encode(record: Record) -> bytes:
    return record.model_dump_json().encode()


def decode(data: bytes) -> Record:
    """Raises StoreError."""
    try:
        return Record.model_validate_json(data)
    except ValidationError as error:
        raise StoreError(f"its record is not one we can read: {error.error_count()} errors") from (
            error
        )


def _with(record: Record, **update: object) -> Record:
    return record.model_copy(update={"batch": record.batch.model_copy(update=update)})
