"""`POST /v1/batches?dry_run=true`: what a create would come to, without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from io import BytesIO
from typing import Any

from skirret_batch.asked import BatchRequest
from skirret_batch.listing import batches
from skirret_batch.plan import TOKENS_PER_BYTE, Index, Keys, Reading, canonical
from skirret_batch.record import Record, blob_key
from skirret_batch.store import BatchStore

_LOOKED_AT = 50  # earlier batches, for how fast the model is


async def dry_run(
    store: BatchStore,
    wanted: BatchRequest,
    max_lines: int,
    model_id: Callable[[str], str | None],
) -> dict[str, Any]:
    """Every error in the input, or its size and, by the last batch of its model, its time.

    `model_id` is the same for all names of one model, None for a name of none.
    """
    reading = await _read(store, wanted, max_lines)
    errors = reading.errors({name: model_id(name) for name in reading.models})
    model = next(iter(reading.models), None)
    total = len(reading.index)
    seconds = None if errors else await _seconds(store, model, total)
    return {
        "object": "batch.dry_run",
        "valid": not errors,
        "errors": {"object": "list", "data": [error.model_dump() for error in errors]}
        if errors
        else None,
        "input_file_id": wanted.input_file_id,
        "endpoint": wanted.endpoint,
        "model": model,
        "request_counts": {"total": total},
        "usage": {"input_tokens": _tokens(reading.index)},
        "estimated": True,
        "estimated_seconds": seconds,
    }


async def _read(store: BatchStore, wanted: BatchRequest, max_lines: int) -> Reading:
    reading = Reading(wanted.endpoint, max_lines, Keys(_Nowhere(), canonical, TOKENS_PER_BYTE))
    async with aclosing(store.stream(blob_key(wanted.input_file_id))) as pieces:
        async for piece in pieces:
            await asyncio.to_thread(reading.feed, piece)
    await asyncio.to_thread(reading.finish)
    return reading


class _Nowhere(BytesIO):
    """Nothing is sorted here, so what it would be sorted by is not kept."""

    def write(self, data: Any) -> int:
        return len(data)


def _tokens(index: Index) -> int:
    return sum(index[ordinal].tokens for ordinal in range(len(index)))


async def _seconds(store: BatchStore, model: str | None, total: int) -> float | None:
    """By the lines a second of the last batch of this model; None when there was none."""
    looked_at = 0
    async for record in batches(store, ""):
        speed = _lines_per_second(record) if record.batch.model == model else None
        if speed is not None:
            return round(total / speed, 1)
        looked_at += 1
        if looked_at == _LOOKED_AT:
            break
    return None


def _lines_per_second(record: Record) -> float | None:
    batch = record.batch
    if batch.status != "completed" or batch.in_progress_at is None or batch.finalizing_at is None:
        return None
    # Times are whole seconds: a batch was as fast as this, or faster.
    return batch.request_counts.total / (batch.finalizing_at - batch.in_progress_at + 1)
