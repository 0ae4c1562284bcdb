"""Results of a batch that still runs, in the order in which each shard committed them.

A cursor is how many results of each shard have been read, `12.0.7`; what is left out is 0. So for a
batch of one shard it is the number of lines read. Manifests only grow: a cursor never goes stale.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from skirret_batch.record import folder_of
from skirret_batch.store import BatchStore, NotThere, Stream
from skirret_batch.worker.shard import Manifest, Segment

_CURSOR = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,9999}")
_AT_ONCE = 16  # manifests read together


class BadCursor(ValueError):
    """A cursor we did not give."""


class SoFar:
    """What was committed when it was looked at."""

    def __init__(self, store: BatchStore, manifests: Mapping[int, Manifest], after: str) -> None:
        """Raises BadCursor."""
        if not _CURSOR.fullmatch(after):
            raise BadCursor(after)
        self._store = store
        self._manifests = manifests
        self._read = dict(enumerate(map(int, after.split("."))))
        if any(count > self._done(number) for number, count in self._read.items()):
            raise BadCursor(after)

    @property
    def cursor(self) -> str:
        """Where to go on once all of this is read."""
        last = max(self._manifests, default=0)
        return ".".join(str(self._done(number)) for number in range(last + 1))

    async def lines(self) -> Stream:
        for number, manifest in sorted(self._manifests.items()):
            skipped = self._read.get(number, 0)
            for segment in manifest.segments:
                start = _offset(segment, skipped)
                skipped = max(0, skipped - len(segment.lines))
                if start == sum(segment.sizes):
                    continue
                async with aclosing(self._store.stream(segment.key, start)) as pieces:
                    async for piece in pieces:
                        yield piece

    def _done(self, number: int) -> int:
        manifest = self._manifests.get(number)
        return manifest.done if manifest else 0


async def so_far(store: BatchStore, batch_id: str, after: str) -> SoFar:
    """Raises BadCursor."""
    prefix = f"{folder_of(batch_id)}commit/"
    keys = [entry.key async for entry in store.list(prefix)]
    names = [key.removeprefix(prefix).removesuffix(".json") for key in keys]
    numbers = [int(name) for name in names if name.isdecimal()]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(number: int) -> Manifest:
        async with gate:
            try:
                blob = await store.get(f"{prefix}{number}.json")
            except NotThere:  # the batch ended, and was cleared
                return Manifest()
        return Manifest.model_validate_json(blob.data)

    manifests: Sequence[Manifest] = await asyncio.gather(*map(read, numbers))
    return SoFar(store, dict(zip(numbers, manifests, strict=True)), after)


def _offset(segment: Segment, lines: int) -> int:
    """Bytes that so many of its lines take."""
    return sum(segment.sizes[:lines])
