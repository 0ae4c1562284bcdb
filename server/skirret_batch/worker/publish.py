"""The output and error files: every line once, in the order of the input, with flat memory.

What goes in is frozen: sealed manifests, and the input. So whoever publishes makes the same bytes,
under ids that follow from the record, and doing it twice is doing it once.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

from skirret_api.openai import FileObject
from skirret_batch import files, lines
from skirret_batch.lines import Unfinished
from skirret_batch.record import Record, ResultKind, blob_key, result_id, results_time
from skirret_batch.store import BatchStore, StoreError
from skirret_batch.upload import Upload
from skirret_batch.worker.shard import Manifest
from skirret_batch.worker.source import Spool

_NOWHERE = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Published:
    """Ids of the files; None for one that would be empty."""

    output: str | None
    error: str | None


async def publish(
    store: BatchStore,
    record: Record,
    spool: Spool,
    manifests: Mapping[int, Manifest],
    part_size: int,
    copies: BatchStore,
) -> Published:
    """Writes the files, and their copies into `copies` where a BatchJob wants some."""
    output = await _Sheet.open(store, record, "output", part_size, copies)
    error = await _Sheet.open(store, record, "error", part_size, copies)
    try:
        with _Results(len(spool.index)) as results:
            for manifest in manifests.values():
                await results.fetch(store, manifest)
            for ordinal in range(len(spool.index)):
                found = results.line(ordinal)
                if found is None:
                    custom_id: str = spool.request(ordinal)["custom_id"]
                    line = lines.unfinished(record.id, ordinal, custom_id, _code(record))
                    await error.write(line)
                else:
                    line, ok = found
                    await (output if ok else error).write(line)
        return Published(await output.close(), await error.close())
    except StoreError:
        # Of a batch that was discarded meanwhile nobody comes to do it.
        await output.abort()
        await error.abort()
        raise


async def retract(store: BatchStore, published: Published) -> None:
    """Takes back the files of a batch that was discarded meanwhile."""
    for file_id in (published.output, published.error):
        if file_id is not None:
            await files.remove(store, file_id)


def _code(record: Record) -> Unfinished:
    """Not by the status, which a late cancel may change: every publisher must say the same."""
    return "batch_expired" if record.batch.finalizing_at else "batch_cancelled"


class _Sheet:
    """One file being written."""

    def __init__(
        self,
        store: BatchStore,
        record: Record,
        kind: ResultKind,
        part_size: int,
        copies: BatchStore,
    ) -> None:
        self._store = store
        self._copies = copies
        self._record = record
        self._id = result_id(record, kind)
        self._name = f"{record.id}_{kind}.jsonl"
        self._part_size = part_size
        self._upload = Upload(store, blob_key(self._id), part_size)

    @classmethod
    async def open(
        cls, store: BatchStore, record: Record, kind: ResultKind, part_size: int, copies: BatchStore
    ) -> _Sheet:
        sheet = cls(store, record, kind, part_size, copies)
        # Of a publisher that was killed; whoever still writes there makes the same bytes again.
        async for pending in store.uploads(blob_key(sheet._id)):
            await store.abort(pending.key, pending.upload)
        return sheet

    async def write(self, line: bytes) -> None:
        await self._upload.write(line)

    async def abort(self) -> None:
        await self._upload.abort()

    async def close(self) -> str | None:
        if not self._upload.size:
            return None
        await self._upload.finish()
        if self._record.output_uri is not None:
            await self._copy(self._record.output_uri)
        created = results_time(self._record)
        kept = self._record.output_expires_after or files.KEPT_FOR
        await files.publish(
            self._store,
            FileObject(
                id=self._id,
                bytes=self._upload.size,
                created_at=created,
                expires_at=created + kept,
                filename=self._name,
                purpose="batch_output",
            ),
        )
        return self._id

    async def _copy(self, uri: str) -> None:
        copy = Upload(
            self._copies, f"{self._copies.key_of(uri).rstrip('/')}/{self._name}", self._part_size
        )
        async with aclosing(self._store.stream(blob_key(self._id))) as pieces:
            async for piece in pieces:
                await copy.write(piece)
        await copy.finish()


class _Results:
    """All committed results in a temporary file, found by line."""

    def __init__(self, total: int) -> None:
        self._file: IO[bytes] = TemporaryFile()  # noqa: SIM115 closed by __exit__
        self._starts = array("Q", [_NOWHERE]) * total
        self._sizes = array("I", [0]) * total
        self._failed = bytearray(total)

    def __enter__(self) -> _Results:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    async def fetch(self, store: BatchStore, manifest: Manifest) -> None:
        for segment in manifest.segments:
            start = self._file.seek(0, 2)
            async with aclosing(store.stream(segment.key)) as pieces:
                async for piece in pieces:
                    self._file.write(piece)
            if self._file.tell() - start != sum(segment.sizes):
                raise StoreError(f"{segment.key} is not as long as its manifest says")
            for ordinal, size in zip(segment.lines, segment.sizes, strict=True):
                self._starts[ordinal] = start
                self._sizes[ordinal] = size
                start += size
            for ordinal in segment.failed:
                self._failed[ordinal] = 1

    def line(self, ordinal: int) -> tuple[bytes, bool] | None:
        """The line and whether it goes into the output file; None without a result."""
        start = self._starts[ordinal]
        if start == _NOWHERE:
            return None
        self._file.seek(start)
        return self._file.read(self._sizes[ordinal]), not self._failed[ordinal]
