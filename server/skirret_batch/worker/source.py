"""A batch's input: one object nobody changes, then a local file to read lines from.

An input that comes by URI (an object, a prefix, gzip) is first copied to one object beside the
record, so that every worker sees the same bytes.
"""

from __future__ import annotations

import secrets
import zlib
from contextlib import aclosing
from tempfile import TemporaryFile
from typing import IO, Any

from skirret_api.openai import BatchError
from skirret_batch.plan import Index, parse_line
from skirret_batch.store import BatchStore, NotThere, Stream
from skirret_batch.upload import Upload

_BOM = b"\xef\xbb\xbf"
_PIECE = 1 << 20  # bytes of decompressed input at once


class BadInput(Exception):
    """The input can't be run: the batch fails with these errors."""

    def __init__(self, errors: list[BatchError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


def bad_input(code: str, message: str) -> BadInput:
    return BadInput([BatchError(code=code, message=message)])


class Spool:
    """The input in a temporary file, read by line."""

    def __init__(self) -> None:
        self._file: IO[bytes] = TemporaryFile()  # noqa: SIM115 closed by close()
        self.index = Index(b"")

    def write(self, piece: bytes) -> None:
        self._file.write(piece)

    def request(self, ordinal: int) -> dict[str, Any]:
        """The whole object on a line."""
        line = self.index[ordinal]
        self._file.seek(line.offset)
        request = parse_line(self._file.read(line.length))
        if request is None:
            raise bad_input("input_changed", "The input is no longer what was validated.")
        return request

    def close(self) -> None:
        self._file.close()


async def snapshot(
    source: BatchStore,
    key: str,
    store: BatchStore,
    folder: str,
    *,
    max_bytes: int,
    part_size: int,
) -> str:
    """Copies an object, or all below a prefix, to one new object in `folder` of `store`.

    Returns its key.

    Raises BadInput.
    """
    target = f"{folder}input/{secrets.token_hex(8)}.jsonl"
    upload = Upload(store, target, part_size)
    try:
        for each in await _objects(source, key):
            last = b"\n"
            async with aclosing(_text(source, each)) as pieces:
                async for piece in pieces:
                    last = piece[-1:]
                    await upload.write(piece)
                    if upload.size > max_bytes:
                        raise bad_input(
                            "input_too_large", f"The input is over {max_bytes:,} bytes."
                        )
            if last != b"\n":
                await upload.write(b"\n")
        await upload.finish()
    except BaseException:
        await upload.abort()
        raise
    return target


async def _objects(store: BatchStore, key: str) -> list[str]:
    """The object itself, or every `.jsonl` and `.jsonl.gz` below the prefix, in order of keys."""
    if key and not key.endswith("/"):
        try:
            return [(await store.head(key)).key]
        except NotThere:
            key += "/"
    found = [
        entry.key async for entry in store.list(key) if entry.key.endswith((".jsonl", ".jsonl.gz"))
    ]
    if not found:
        raise bad_input("input_not_found", f"There is no .jsonl or .jsonl.gz at {key}.")
    return found


async def _text(store: BatchStore, key: str) -> Stream:
    """An object's bytes without compression and byte order mark, in bounded pieces."""
    is_first = True
    stored = store.stream(key)
    plain = _decompressed(stored, key) if key.endswith(".gz") else stored
    async with aclosing(stored), aclosing(plain):
        async for piece in plain:
            text = piece.removeprefix(_BOM) if is_first else piece
            is_first = False
            if text:
                yield text


async def _decompressed(compressed: Stream, key: str) -> Stream:
    gzip = zlib.decompressobj(wbits=31)
    is_whole = True
    try:
        async for piece in compressed:
            text = b""
            while piece or len(text) == _PIECE:
                text = gzip.decompress(piece, _PIECE)
                yield text
                piece = gzip.unconsumed_tail
                is_whole = gzip.eof
                if gzip.eof:  # several members in one file are one text
                    piece, gzip = gzip.unused_data, zlib.decompressobj(wbits=31)
    except zlib.error as error:
        raise bad_input("input_not_readable", f"{key} is not gzip: {error}.") from error
    if not is_whole:
        raise bad_input("input_not_readable", f"{key} ends in the middle.")
