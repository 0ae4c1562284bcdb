"""Compare-and-set on a store that honours If-None-Match but not If-Match.

KEY               the object as it was created, or put
KEY.cas/<number>  what compare-and-set made of it, numbers counting down from ffffffffffff

Version n + 1 can be created once, so of all writers who read version n one wins, and the number is
part of the ETag. The first entry below KEY.cas/ is the newest, by one LIST. Of the older ones
the last few are kept: a writer so slow that its number was taken and removed meanwhile finds newer
versions when it looks again, and has lost. A key is either put or compared-and-set, not both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from skirret_batch.store import (
    BatchStore,
    Blob,
    Changed,
    Entry,
    NotThere,
    Part,
    PendingUpload,
    Stream,
)

KEPT = 16  # versions before the newest, at least

_VERSIONS = ".cas/"  # not `.versions`: SeaweedFS keeps versions of its own there
_HIGHEST = (1 << 48) - 1


@dataclass(frozen=True, slots=True)
class _Version:
    number: int  # 0: the object as it was created
    stored: Entry

    @property
    def etag(self) -> str:
        return f"{self.number}-{self.stored.etag}" if self.number else self.stored.etag


class CreateOnly:
    """A BatchStore over one that can't compare; its `put_if_match` is never called."""

    def __init__(self, store: BatchStore) -> None:
        self._store = store

    async def probe(self) -> None:
        await self._store.probe()

    def key_of(self, uri: str) -> str:
        return self._store.key_of(uri)

    async def get(self, key: str) -> Blob:
        while True:
            newest = await self._newest(key)
            try:
                return await self._read(newest)
            except NotThere:  # overtaken and removed since; or the object was deleted
                continue

    async def get_if_changed(self, key: str, etag: str) -> Blob | None:
        if (await self._newest(key)).etag == etag:
            return None
        return await self.get(key)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._store.read((await self._newest(key)).stored.key, start, end)

    async def stream(self, key: str, start: int = 0, end: int | None = None) -> Stream:
        newest = await self._newest(key)
        async with aclosing(self._store.stream(newest.stored.key, start, end)) as pieces:
            async for piece in pieces:
                yield piece

    async def head(self, key: str) -> Entry:
        newest = await self._newest(key)
        return Entry(key, newest.stored.size, newest.etag)

    async def put(self, key: str, data: bytes) -> str:
        return await self._store.put(key, data)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        try:
            before = await self._newest(key)
            if before.etag != etag:
                raise Changed(f"{key} is no longer what was read")
            number = before.number + 1
            created = await self._store.put_if_absent(_key_of_version(key, number), data)
            newest = await self._newest(key)
        except NotThere:
            raise Changed(f"{key} is gone") from None
        if newest.number >= number + KEPT:  # so ours may have been made, and removed, before
            raise Changed(f"{key} was overtaken while it was written")
        if number % KEPT == 0:
            await self._forget(key, number - KEPT)
        return f"{number}-{created}"

    async def put_if_absent(self, key: str, data: bytes) -> str:
        return await self._store.put_if_absent(key, data)

    async def delete(self, key: str) -> None:
        # The object first: from then on it is not there, and no version can be added.
        await self._store.delete(key)
        async for entry in self._store.list(key + _VERSIONS):
            await self._store.delete(entry.key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Entry]:
        held: Entry | None = None  # its versions come next, if there are any
        async for entry in self._store.list(prefix, after):
            key, is_version, _ = entry.key.partition(_VERSIONS)
            if not is_version:
                if held is not None:
                    yield held
                held = entry
            elif held is not None and held.key == key:
                version = _version(entry)
                yield Entry(key, entry.size, version.etag)
                held = None
        if held is not None:
            yield held

    async def folders(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        async for name in self._store.folders(prefix, after):
            if not f"{name}/".endswith(_VERSIONS):
                yield name

    async def begin(self, key: str) -> str:
        return await self._store.begin(key)

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        return await self._store.put_part(key, upload, number, data)

    async def complete(self, key: str, upload: str, parts: Sequence[Part]) -> str:
        return await self._store.complete(key, upload, parts)

    async def abort(self, key: str, upload: str) -> None:
        await self._store.abort(key, upload)

    def uploads(self, prefix: str) -> AsyncIterator[PendingUpload]:
        return self._store.uploads(prefix)

    async def close(self) -> None:
        await self._store.close()

    async def _newest(self, key: str) -> _Version:
        """Raises NotThere."""
        original = await self._store.head(key)
        async for entry in self._store.list(key + _VERSIONS):
            return _version(entry)
        return _Version(0, original)

    async def _read(self, version: _Version) -> Blob:
        blob = await self._store.get(version.stored.key)
        # An object that was put anew since has an ETag of its own.
        return Blob(blob.data, version.etag if version.number else blob.etag)

    async def _forget(self, key: str, newest: int) -> None:
        """Removes version `newest` and those before it, but for the object itself."""
        async for entry in self._store.list(key + _VERSIONS, _key_of_version(key, newest + 1)):
            await self._store.delete(entry.key)


def _key_of_version(key: str, number: int) -> str:
    return f"{key}{_VERSIONS}{_HIGHEST - number:012x}"


def _version(entry: Entry) -> _Version:
    return _Version(_HIGHEST - int(entry.key.rpartition("/")[2], 16), entry)
