"""Where batches live: one small Protocol over an object store, with compare-and-set.

StoreError
├── NotThere        no object under this key
├── Changed         a conditional write lost: somebody wrote first
└── StoreUnavailable  retries are spent; the operation may be tried again later
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """An operation on the store failed; the message names the key and the reason."""


class NotThere(StoreError):
    pass


class Changed(StoreError):
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


class BatchStore(Protocol):
    """Keys are relative, with `/` between folders. Every write is durable when it returns."""

    async def get(self, key: str) -> Blob:
        """Raises NotThere."""

    async def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes [start, end) of an object; fewer at its end. Raises NotThere."""

    def stream(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The same in bounded pieces. Raises NotThere before the first."""

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
        """Objects whose key begins with `prefix`, in byte order, after key `after`."""

    async def begin(self, key: str) -> str:
        """Starts a multipart upload; returns its id."""

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        """Parts but the last are at least 5 MiB."""

    async def complete(self, key: str, upload: str, parts: Sequence[Part]) -> str:
        """Publishes the parts as one object, whole or not at all; returns its ETag."""

    async def abort(self, key: str, upload: str) -> None:
        """Forgets the upload and its parts."""

    async def close(self) -> None: ...
