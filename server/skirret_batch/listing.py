"""Files and batches one after the other, as lists show them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from skirret_api.openai import FileObject
from skirret_batch.files import FILES, is_expired
from skirret_batch.record import BATCHES, Record, load
from skirret_batch.store import BatchStore, Entry, NotThere

_KEPT = 20_000  # files remembered
_AT_ONCE = 32  # read together

T = TypeVar("T")


async def batches(
    store: BatchStore, after: str, is_ascending: bool = False
) -> AsyncIterator[Record]:
    """Newest first, or oldest first, from behind batch `after` on."""

    async def read(batch_id: str) -> Record | None:
        try:
            return (await load(store, batch_id))[0]
        except NotThere:  # about to be created, or what a create left that died
            return None

    if is_ascending:
        names = _reversed(store.folders(BATCHES), after)
    else:
        names = store.folders(BATCHES, after)
    async for ids in _grouped(names):
        for record in await asyncio.gather(*map(read, ids)):
            if record is not None:
                yield record


class Shelf:
    """File objects, each read from the store once: meta.json never changes under one ETag."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[BatchStore, str, str], FileObject] = OrderedDict()

    async def files(
        self, store: BatchStore, after: str, is_ascending: bool, now: float
    ) -> AsyncIterator[FileObject]:
        """Newest first, or oldest first, from behind file `after` on; expired ones left out."""
        entries = _oldest_first(store, after) if is_ascending else _newest_first(store, after)
        async for group in _grouped(entries):
            for file in await asyncio.gather(*(self._read(store, entry) for entry in group)):
                if file is not None and not is_expired(file, now):
                    yield file

    async def _read(self, store: BatchStore, entry: Entry) -> FileObject | None:
        key = (store, entry.key, entry.etag)
        file = self._seen.get(key)
        if file is None:
            try:
                file = FileObject.model_validate_json((await store.get(entry.key)).data)
            except NotThere:  # deleted since it was listed
                return None
            self._seen[key] = file
            if len(self._seen) > _KEPT:
                self._seen.popitem(last=False)
        return file


async def _newest_first(store: BatchStore, after: str) -> AsyncIterator[Entry]:
    # "~" is behind every name in a file's folder.
    async for entry in store.list(FILES, f"{FILES}{after}/~" if after else ""):
        if entry.key.endswith("/meta.json"):
            yield entry


async def _oldest_first(store: BatchStore, after: str) -> AsyncIterator[Entry]:
    entries = [entry async for entry in _newest_first(store, "")]
    for entry in reversed(entries):
        if not after or entry.key < f"{FILES}{after}/":
            yield entry


async def _reversed(names: AsyncIterator[str], after: str) -> AsyncIterator[str]:
    for name in reversed([name async for name in names]):
        if not after or name < after:
            yield name


async def _grouped(items: AsyncIterator[T]) -> AsyncIterator[Sequence[T]]:
    group: list[T] = []
    async for item in items:
        group.append(item)
        if len(group) == _AT_ONCE:
            yield group
            group = []
    if group:
        yield group
