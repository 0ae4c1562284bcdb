"""A BatchStore in a local folder, with the same guarantees for any number of processes on it.

ROOT/<key>                    the objects
ROOT/.skirret/locks/<00..3f>  one lock for every 64th of the keys, held while a key is replaced
ROOT/.skirret/tmp             writes in progress; a rename publishes them whole
ROOT/.skirret/uploads/<id>    `key` and the parts of a multipart upload
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

from skirret_api.tenants import FolderStore
from skirret_batch.store import (
    Blob,
    Changed,
    Entry,
    NotThere,
    Part,
    PendingUpload,
    StoreRefused,
    Stream,
)

_LOCKS = 64
_PIECE = 1 << 20  # bytes read at once
_HASHED = 1 << 20  # objects up to this size have a hash of their content as ETag
_SPACE, _RIGHTS = "free some space there", "let this process write there"
_MENDED_BY = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
}
_ABANDONED = 24 * 3600.0  # seconds after which a temporary file is nobody's

T = TypeVar("T")


class Folder:
    """Objects are files. A write is a temporary file, fsync, rename under the key's lock, fsync."""

    def __init__(self, settings: FolderStore, durable: bool = True) -> None:
        self._root = Path(settings.path).absolute()
        self._own = self._root / ".skirret"
        self._durable = durable

    async def probe(self) -> None:
        await self._do("", self._prepare)

    def key_of(self, uri: str) -> str:
        parts = urlsplit(uri)
        path = Path(os.path.normpath(unquote(parts.path)))
        if parts.scheme != "file" or not path.is_relative_to(self._root):
            raise StoreRefused(f"{uri} is outside this store, file://{self._root}")
        return path.relative_to(self._root).as_posix() + ("/" if parts.path.endswith("/") else "")

    async def get(self, key: str) -> Blob:
        data, etag = await self._do(key, self._read_all, self._path(key))
        return Blob(data, etag)

    async def get_if_changed(self, key: str, etag: str) -> Blob | None:
        blob = await self.get(key)
        return None if blob.etag == etag else blob

    async def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._do(key, _read_range, self._path(key), start, end)

    async def stream(self, key: str, start: int = 0, end: int | None = None) -> Stream:
        # An open file outlives its name: an overwrite or a delete doesn't disturb this reader.
        with self._failures(key):  # not in a thread: a cancel would lose the open file
            file = self._path(key).open("rb")
        try:
            file.seek(start)
            left = None if end is None else end - start
            while left is None or left > 0:
                size = _PIECE if left is None else min(_PIECE, left)
                piece = await asyncio.to_thread(file.read, size)
                if not piece:
                    return
                left = None if left is None else left - len(piece)
                yield piece
        finally:
            file.close()

    async def head(self, key: str) -> Entry:
        path = self._path(key)
        return await self._do(key, lambda: Entry(key, path.stat().st_size, _etag(path)))

    async def put(self, key: str, data: bytes) -> str:
        return await self._do(key, self._write, key, data, lambda path: None)

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        def check(path: Path) -> None:
            if not path.is_file() or _etag(path) != etag:
                raise Changed(f"{key} is no longer what was read")

        return await self._do(key, self._write, key, data, check)

    async def put_if_absent(self, key: str, data: bytes) -> str:
        def check(path: Path) -> None:
            if path.exists():
                raise Changed(f"{key} exists")

        return await self._do(key, self._write, key, data, check)

    async def delete(self, key: str) -> None:
        await self._do(key, self._delete, key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Entry]:
        for key in await self._do(prefix, self._keys, prefix, after):
            try:
                yield await self.head(key)
            except NotThere:  # deleted since the names were read
                continue

    async def folders(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        def names() -> Sequence[str]:
            with os.scandir(self._root / prefix) as found:
                return sorted(e.name for e in found if e.is_dir() and e.name > after)

        try:
            for name in await self._do(prefix, names):
                yield name
        except NotThere:
            return

    async def begin(self, key: str) -> str:
        self._path(key)
        upload = secrets.token_hex(16)

        def start() -> None:
            folder = self._upload(upload)
            folder.mkdir(parents=True)
            (folder / "key").write_text(key)

        await self._do(key, start)
        return upload

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        def write() -> Part:
            folder = self._upload(upload)
            (folder / "key").stat()
            temporary = self._temporary(data)
            try:
                os.replace(temporary, folder / f"{number:05d}")
            finally:
                temporary.unlink(missing_ok=True)
            return Part(number, sha256(data).hexdigest(), len(data))

        return await self._do(key, write)

    async def complete(self, key: str, upload: str, parts: Sequence[Part]) -> str:
        return await self._do(key, self._complete, key, upload, parts)

    async def abort(self, key: str, upload: str) -> None:
        await self._do(key, shutil.rmtree, self._upload(upload), True)

    async def uploads(self, prefix: str) -> AsyncIterator[PendingUpload]:
        def found() -> Sequence[PendingUpload]:
            pending = []
            for file in sorted((self._own / "uploads").glob("*/key")):
                with suppress(FileNotFoundError):  # completed or aborted since
                    key, started = file.read_text(), file.stat().st_mtime
                    pending.append(PendingUpload(key, file.parent.name, started))
            return [each for each in pending if each.key.startswith(prefix)]

        for upload in await self._do(prefix, found):
            yield upload

    async def close(self) -> None:
        return

    async def _do(self, key: str, work: Callable[..., T], *arguments: object) -> T:
        """Runs blocking work beside the event loop."""
        with self._failures(key):
            return await asyncio.to_thread(work, *arguments)

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        """Says failures of the operating system in our words."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise NotThere(f"nothing at {key}") from error
        except OSError as error:
            advice = _MENDED_BY.get(error.errno or 0)
            what = f"{self._root / key}: {error.strerror}"
            raise StoreRefused(f"{what}; {advice}" if advice else what) from error

    def _path(self, key: str) -> Path:
        if any(part in ("", ".", "..", ".skirret") for part in key.split("/")) or "\0" in key:
            raise StoreRefused(f"{key!r} is no key")
        return self._root / key

    def _upload(self, upload: str) -> Path:
        return self._own / "uploads" / upload

    def _prepare(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise StoreRefused(f"{self._root} is no folder")
        for name in ("locks", "tmp", "uploads"):
            (self._own / name).mkdir(parents=True, exist_ok=True)
        for file in (self._own / "tmp").iterdir():
            with suppress(FileNotFoundError):  # a write of another process, done since
                if file.stat().st_mtime < time.time() - _ABANDONED:
                    file.unlink()
        os.unlink(self._temporary(b"a write"))

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        path = self._own / "locks" / f"{sha256(key.encode()).digest()[0] % _LOCKS:02x}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as lock:  # closing it, or dying, lets go
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read_all(self, path: Path) -> tuple[bytes, str]:
        with open(path, "rb") as file:
            data = file.read()
            return data, _etag_of(data, os.fstat(file.fileno()))

    def _write(self, key: str, data: bytes, check: Callable[[Path], None]) -> str:
        path = self._path(key)
        temporary = self._temporary(data)
        try:
            with self._locked(key):
                check(path)
                etag = _etag_of(data, temporary.stat())
                self._rename(temporary, path)
                return etag
        finally:
            temporary.unlink(missing_ok=True)

    def _temporary(self, data: bytes) -> Path:
        path = self._own / "tmp" / secrets.token_hex(16)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "wb") as file:
                file.write(data)
                self._sync(file)
        except OSError:  # a full disk: what was written would keep it full
            path.unlink(missing_ok=True)
            raise
        return path

    def _rename(self, source: Path, target: Path) -> None:
        while True:
            try:
                self._make(target.parent)
                os.replace(source, target)
                break
            except FileNotFoundError:
                # A delete beside us removed the folder, empty for a moment: unless it is the source
                # that is gone, again.
                source.stat()
            except FileExistsError:  # as above, seen by mkdir; or a file has the folder's name
                if target.parent.is_file():
                    raise
        self._sync_folder(target.parent)

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            self._sync_folder(folder.parent)

    def _sync(self, file: BinaryIO) -> None:
        file.flush()
        if self._durable:
            os.fsync(file.fileno())

    def _sync_folder(self, path: Path) -> None:
        if not self._durable:
            return
        try:
            folder = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # what was written there is deleted already
            return
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _delete(self, key: str) -> None:
        path = self._path(key)
        if path.is_dir():
            return
        with self._locked(key):
            path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self._root:
                return
            try:
                folder.rmdir()
            except OSError:  # not empty, or already gone
                return

    def _keys(self, prefix: str, after: str) -> Sequence[str]:
        found: list[str] = []
        for folder, folders, names in os.walk(self._root / prefix.rpartition("/")[0]):
            folders[:] = [name for name in folders if name != ".skirret"]
            found += ((Path(folder) / name).relative_to(self._root).as_posix() for name in names)
        return sorted((k for k in found if k.startswith(prefix) and k > after), key=str.encode)

    def _complete(self, key: str, upload: str, parts: Sequence[Part]) -> str:
        folder = self._upload(upload)
        path = self._path(key)
        whole = self._own / "tmp" / secrets.token_hex(16)
        try:
            with open(whole, "wb") as target:
                for part in parts:
                    with open(folder / f"{part.number:05d}", "rb") as source:
                        shutil.copyfileobj(source, target, _PIECE)
                self._sync(target)
            with self._locked(key):
                etag = _etag(whole)
                self._rename(whole, path)
        finally:
            whole.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        return etag


def _etag(path: Path) -> str:
    with open(path, "rb") as file:
        stat = os.fstat(file.fileno())
        return _etag_of(file.read() if stat.st_size <= _HASHED else b"", stat)


def _etag_of(data: bytes, stat: os.stat_result) -> str:
    """A hash of what is small; what is large, and never compared-and-set, goes by its inode."""
    if stat.st_size <= _HASHED:
        return sha256(data).hexdigest()[:32]
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _read_range(path: Path, start: int, end: int | None) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(-1 if end is None else max(0, end - start))
