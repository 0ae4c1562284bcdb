"""Where batches live: one small Protocol over an object store, with compare-and-set.

StoreError
├── NotThere          no object under this key
├── Changed           a conditional write lost: somebody wrote first
├── StoreRefused      credentials, bucket, full disk, no compare-and-set: a person must mend it
└── StoreUnavailable  retries are spent; the operation may be tried again later
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from skirret_api.tenants import FolderStore, S3Store

Stream = AsyncGenerator[bytes, None]


class StoreError(Exception):
    """An operation on the store failed; the message names the key and the reason."""


class NotThere(StoreError):
    pass


class Changed(StoreError):
    pass


class StoreRefused(StoreError):
    pass


class StoreUnavailable(StoreError):
    pass


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed object."""

    key: str
    size: int  # bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Blob:
    """A whole small object, and the ETag a compare-and-set on it needs."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Part:
    number: int  # from 1
    etag: str
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A multipart upload that nobody has completed or aborted."""

    key: str
    upload: str
    started: float  # seconds since the epoch, by the store's clock


@dataclass(frozen=True, slots=True)
class Retries:
    """How long an operation on a remote store is tried again before StoreUnavailable."""

    seconds: float = 20.0
    silence: float = 60.0  # after which a request is given up
    first_pause: float = 0.1
    longest_pause: float = 5.0


class BatchStore(Protocol):
    """Keys are relative, with `/` between folders. Every write is durable when it returns.

    An ETag may be no more than a hash of the content, and a conditional write of what is there
    already may succeed. So whoever must know that it was the one who won, or that nothing happened
    in between, writes something of its own and a counter that only grows.
    """

    async def probe(self) -> None:
        """Raises StoreRefused, saying why, for a store that batches can't stand on."""

    def key_of(self, uri: str) -> str:
        """The key that a user's URI means. Raises StoreRefused for one outside this store."""

    async def get(self, key: str) -> Blob:
        """Raises NotThere."""

    async def get_if_changed(self, key: str, etag: str) -> Blob | None:
        """None while the object still has this ETag. Raises NotThere."""

    async def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of an object; fewer at its end. Raises NotThere."""

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Stream:
        """The same in bounded pieces. Raises NotThere before the first, Changed if overwritten.

        Whoever may leave it early closes it: `async with aclosing(store.stream(key)) as pieces`.
        """

    async def head(self, key: str) -> Entry:
        """Raises NotThere."""

    async def put(self, key: str, data: bytes) -> str:
        """Writes whatever was there before; returns the new ETag."""

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Writes only over the object with this ETag. Raises Changed."""

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Writes only where nothing is. Raises Changed."""

    async def delete(self, key: str) -> None:
        """Nothing there is no error."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[Entry]:
        """Objects whose key begins with `prefix`, in byte order, after key `after`.

        SeaweedFS orders folder by folder: `b/1` before `b-/1`. No folder of ours begins another.
        """

    def folders(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Names directly under `prefix` that hold objects, in byte order, after name `after`."""

    async def begin(self, key: str) -> str:
        """Starts a multipart upload; returns its id."""

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        """Parts but the last are at least 5 MiB. Raises NotThere when the upload is gone."""

    async def complete(self, key: str, upload: str, parts: Sequence[Part]) -> str:
        """Publishes the parts as one object, whole or not at all; returns its ETag.

        Raises NotThere when the upload is gone.
        """

    async def abort(self, key: str, upload: str) -> None:
        """Forgets the upload and its parts; one that is gone is no error."""

    def uploads(self, prefix: str) -> AsyncIterator[PendingUpload]:
        """Uploads in progress. MinIO lists only those whose key is exactly `prefix`."""

    async def close(self) -> None: ...


def open_store(settings: S3Store | FolderStore, retries: Retries | None = None) -> BatchStore:
    """The store of one tenant. Connects to nothing yet; `probe` does."""
    if isinstance(settings, S3Store):
        from skirret_batch.bucket import Bucket
        from skirret_batch.s3 import S3

        return Bucket(S3(settings, retries or Retries()))
    from skirret_batch.folder import Folder

    return Folder(settings)
