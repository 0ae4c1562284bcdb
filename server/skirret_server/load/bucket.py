"""Models in a bucket: s3://bucket/prefix."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from skirret_batch.store import (
    BatchStore,
    Changed,
    Entry,
    NotThere,
    StoreRefused,
    StoreUnavailable,
)
from skirret_server.load.errors import SourceDenied, SourceNotFound
from skirret_server.load.remote import Interrupted, Listing, RemoteFile


class BucketModel:
    """The objects directly under one prefix of a store."""

    def __init__(self, store: BatchStore, bucket: str, prefix: str) -> None:
        self._store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._uri = f"s3://{bucket}/{self._prefix}"

    @property
    def name(self) -> str:
        return self._uri.replace("://", "--").strip("/").replace("/", "--")

    async def listing(self) -> Listing:
        entries: list[Entry] = []
        with self._translated():
            async for entry in self._store.list(self._prefix):
                if "/" not in entry.key.removeprefix(self._prefix):
                    entries.append(entry)
        if not entries:
            raise SourceNotFound(f"{self._uri} has no objects")
        identity = "\n".join(f"{each.key} {each.size} {each.etag}" for each in entries)
        return Listing(
            version=hashlib.sha256(identity.encode()).hexdigest()[:40],
            files=tuple(
                RemoteFile(each.key.removeprefix(self._prefix), each.size) for each in entries
            ),
        )

    async def stream(self, file: RemoteFile, start: int) -> AsyncGenerator[bytes, None]:
        with self._translated():
            async for piece in self._store.stream(self._prefix + file.name, start):
                yield piece

    async def close(self) -> None:
        await self._store.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except NotThere as error:
            raise SourceNotFound(f"{self._uri}: {error}") from error
        except StoreRefused as error:
            raise SourceDenied(f"{self._uri}: {error}") from error
        except (StoreUnavailable, Changed) as error:
            raise Interrupted(f"{self._uri}: {error}") from error
