"""A batch's record: its state, the transitions it may take, and its place in the store.

The record is the only truth of a batch. Any process may change it, through `change` below: read,
decide with a pure transition, write by compare-and-set, again when somebody else was faster.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from skirret_api.openai import TERMINAL, Batch, BatchStatus
from skirret_batch.store import BatchStore, Changed

_HORIZON_MS = (1 << 48) - 1


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

    model_config = ConfigDict(extra="forbid")

    tokens_per_second: float = 0.0
    eta_seconds: float | None = None


class Record(BaseModel):
    """`batches/{id}/batch.json`."""

    model_config = ConfigDict(extra="forbid")

    batch: Batch
    input_uri: str | None = None  # of a BatchJob with `input.uri`; else batch.input_file_id
    output_uri: str | None = None  # where a BatchJob wants copies of its files
    output_expires_after: int | None = None  # seconds
    cr: CustomResource | None = None
    parallelism: int = 1
    priority: int = 0
    progress: Progress = Progress()
    idempotency_key: str | None = None
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


def record_key(batch_id: str) -> str:
    return f"batches/{batch_id}/batch.json"


def live_key(batch_id: str) -> str:
    return f"live/{batch_id}"


# Allowed moves. A terminal state has none.
_NEXT: dict[BatchStatus, frozenset[BatchStatus]] = {
    "validating": frozenset({"in_progress", "failed", "cancelling", "finalizing"}),
    "in_progress": frozenset({"finalizing", "cancelling", "failed"}),
    "finalizing": frozenset({"completed", "expired", "failed", "cancelling"}),
    "cancelling": frozenset({"cancelled", "failed"}),
}


def move(record: Record, status: BatchStatus, now: float) -> Record:
    """The record in its next state, that state's time set once. Raises Transition."""
    batch = record.batch
    if status not in _NEXT.get(batch.status, frozenset()):
        raise Transition(f"batch {batch.id} is {batch.status}; it can't become {status}")
    update: dict[str, object] = {"status": status}
    stamp = f"{status}_at"
    if getattr(batch, stamp) is None:
        update[stamp] = int(now)
    return record.model_copy(update={"batch": batch.model_copy(update=update)})


async def load(store: BatchStore, batch_id: str) -> tuple[Record, str]:
    """The record and its ETag. Raises NotThere."""
    blob = await store.get(record_key(batch_id))
    return Record.model_validate_json(blob.data), blob.etag


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
