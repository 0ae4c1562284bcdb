"""`POST /v1/batches?dry_run=true`: what a create would come to, without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol

from skirret_batch.asked import BatchRequest
from skirret_batch.listing import batches
from skirret_batch.plan import TOKENS_PER_BYTE, Body, Index, Keys, Reading, canonical, parse_line
from skirret_batch.record import Record, blob_key
from skirret_batch.store import BatchStore

_LOOKED_AT = 50  # earlier batches, for how fast the model is
_COUNTED_TOGETHER = 16  # prompts
_COUNTING = 10.0  # seconds; of a file that takes longer the rest is estimated by what was counted


class Models(Protocol):
    """What the host knows of its models, as the caller sees them."""

    def model_id(self, name: str) -> str | None:
        """The same for all names of one model, None for a name of none."""

    async def tokens(self, asked: Body) -> int | None:
        """What `/tokenize` of the model's server counts; None while there is no server."""


class AnyModel:
    """Of a host that knows nothing of its models."""

    def model_id(self, name: str) -> str | None:
        return name

    async def tokens(self, asked: Body) -> int | None:
        return None


async def dry_run(
    store: BatchStore, wanted: BatchRequest, max_lines: int, models: Models
) -> dict[str, Any]:
    """Every error in the input, or its size and, by the last batch of its model, its time."""
    reading = await _read(store, wanted, max_lines)
    errors = reading.errors({name: models.model_id(name) for name in reading.models})
    model = next(iter(reading.models), None)
    total = len(reading.index)
    guess = _Tokens(_estimate(reading.index), is_exact=False)
    tokens = guess if errors else await _count(store, wanted, guess, models)
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
        "usage": {"input_tokens": tokens.count},
        "estimated": not tokens.is_exact,
        "estimated_seconds": seconds,
    }


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Of all prompts."""

    count: int
    is_exact: bool


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


def _estimate(index: Index) -> int:
    return sum(index[ordinal].tokens for ordinal in range(len(index)))


async def _count(
    store: BatchStore, wanted: BatchRequest, guess: _Tokens, models: Models
) -> _Tokens:
    """As the server counts them; when it can't, or takes too long, `guess` made better by it."""
    counted = guessed = 0
    try:
        async with (
            asyncio.timeout(_COUNTING),
            aclosing(_bodies(store, blob_key(wanted.input_file_id))) as groups,
        ):
            async for bodies in groups:
                counts = await asyncio.gather(*(_tokens(body, models) for body in bodies))
                known = [count for count in counts if count is not None]
                if len(known) < len(counts):
                    return guess
                counted += sum(known)
                guessed += sum(_guess(body) for body in bodies)
    except TimeoutError:
        return _Tokens(guess.count * counted // guessed if guessed else guess.count, False)
    return _Tokens(counted, is_exact=True)


async def _tokens(body: Body, models: Models) -> int | None:
    if "messages" in body:
        return await models.tokens(body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not any(isinstance(each, str) for each in prompt):
        return sum(len(each) if isinstance(each, list) else 1 for each in prompt)
    return await models.tokens({"model": body.get("model"), "prompt": prompt})


def _guess(body: Body) -> int:
    """As the index has it."""
    return int(len(canonical(body)) * TOKENS_PER_BYTE) + 1


async def _bodies(store: BatchStore, key: str) -> AsyncGenerator[list[Body]]:
    """Of the lines of a valid input, some at a time."""
    rest, bodies = b"", list[Body]()
    async with aclosing(store.stream(key)) as pieces:
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            bodies += _parsed(lines)
            while len(bodies) >= _COUNTED_TOGETHER:
                yield bodies[:_COUNTED_TOGETHER]
                del bodies[:_COUNTED_TOGETHER]
    bodies += _parsed([rest])
    if bodies:
        yield bodies


def _parsed(lines: list[bytes]) -> list[Body]:
    requests = (parse_line(line.removeprefix(b"\xef\xbb\xbf")) for line in lines if line.strip())
    return [request["body"] for request in requests if request is not None]


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
