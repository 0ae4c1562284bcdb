"""A bucket as batches use it: by its own compare-and-set, or by what stands in for it.

What a bucket honours is tried before its first use, and written into it: whoever comes later does
as the first did, so that all processes agree even when the service is replaced by another release.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from skirret_batch.create_only import CreateOnly
from skirret_batch.s3 import S3
from skirret_batch.store import (
    BatchStore,
    Blob,
    Changed,
    Entry,
    Part,
    PendingUpload,
    StoreRefused,
    Stream,
)

MODE = ".mode"  # key of the object that says which
_COMPARES, _CREATES = b"compare-and-set", b"create-only"


class Bucket:
    """Decides once, then passes everything on."""

    def __init__(self, s3: S3) -> None:
        self._s3 = s3
        self._chosen: BatchStore | None = None
        self._choosing = asyncio.Lock()

    async def probe(self) -> None:
        await self._store()

    def key_of(self, uri: str) -> str:
        return self._s3.key_of(uri)

    async def get(self, key: str) -> Blob:
        return await (await self._store()).get(key)

    async def get_if_changed(self, key: str, etag: str) -> Blob | None:
        return await (await self._store()).get_if_changed(key, etag)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await (await self._store()).read(key, start, end)

    async def stream(self, key: str, start: int = 0, end: int | None = None) -> Stream:
        async with aclosing((await self._store()).stream(key, start, end)) as pieces:
            async for piece in pieces:
                yield piece

    async def head(self, key: str) -> Entry:
        return await (await self._store()).head(key)

    async def put(self, key: str, data: bytes) -> str:
        return await (await self._store()).put(key, data)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return await (await self._store()).put_if_match(key, data, etag)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        return await (await self._store()).put_if_absent(key, data)

    async def delete(self, key: str) -> None:
        await (await self._store()).delete(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Entry]:
        async for entry in (await self._store()).list(prefix, after):
            if entry.key != MODE:
                yield entry

    async def folders(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        async for name in (await self._store()).folders(prefix, after):
            yield name

    async def begin(self, key: str) -> str:
        return await (await self._store()).begin(key)

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        return await (await self._store()).put_part(key, upload, number, data)

    async def complete(self, key: str, upload: str, parts: Sequence[Part]) -> str:
        return await (await self._store()).complete(key, upload, parts)

    async def abort(self, key: str, upload: str) -> None:
        await (await self._store()).abort(key, upload)

    async def uploads(self, prefix: str) -> AsyncIterator[PendingUpload]:
        async for upload in (await self._store()).uploads(prefix):
            yield upload

    async def close(self) -> None:
        await self._s3.close()

    async def _store(self) -> BatchStore:
        """Raises StoreRefused; the next call then tries again."""
        async with self._choosing:
            if self._chosen is None:
                self._chosen = await self._choose()
            return self._chosen

    async def _choose(self) -> BatchStore:
        compares = await self._s3.compares()
        try:
            await self._s3.put_if_absent(MODE, _COMPARES if compares else _CREATES)
        except Changed:
            agreed = (await self._s3.get(MODE)).data
            if agreed == _COMPARES and not compares:
                raise StoreRefused(
                    f"{self._s3.where} honoured If-Match on PUT when batches began there, and no "
                    "longer does: go back to the service it was"
                ) from None
            compares = agreed == _COMPARES
        return self._s3 if compares else CreateOnly(self._s3)
