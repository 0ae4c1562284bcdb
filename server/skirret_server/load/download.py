"""Brings a remote model into a folder of the cache: resumable, checked, whole or not at all."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from skirret_server.load.errors import (
    BrokenCheckpoint,
    DoesNotFit,
    LoadError,
    SourceStalled,
    SourceUnavailable,
)
from skirret_server.load.progress import Progress
from skirret_server.load.remote import Interrupted, Listing, Remote, RemoteFile

_AT_ONCE = 4  # files
_LOCK_POLL = 0.5  # seconds
_FIRST_ANSWER = 10.0  # seconds; who asked for a source that isn't there should hear of it soon
# What a server reads of a repository. No pickles; no second copy of the weights.
_KINDS = (".json", ".jinja", ".model", ".txt", ".safetensors")
_SECOND_COPIES = ("consolidated",)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds."""

    stall: float = 120.0  # without a byte, until we give up
    pause: float = 1.0  # before the first retry; doubled at each, up to `stall` / 4


async def download(
    remote: Remote,
    cache: Path,
    progress: Progress,
    check: Callable[[Path], object],
    patience: Patience,
) -> Path:
    """The folder with the model's files. Raises LoadError.

    `check` sees the folder once everything but the weights is there, and may refuse the model.
    """
    progress.begin("finding the model")
    listing = await listed(remote, patience)
    target = cache / remote.name / listing.version
    async with _alone(cache / remote.name, target, progress):
        if target.is_dir():
            check(target)
            return target
        part = target.with_name(f".part-{listing.version}")
        part.mkdir(parents=True, exist_ok=True)
        files = list(listing.files)
        _make_sure_of_space(part, files)
        small, large = (
            [each for each in files if each.name.endswith(".safetensors") is is_weight]
            for is_weight in (False, True)
        )
        fetch = _Fetch(remote, part, progress, patience)
        await fetch.all(small)
        check(part)
        await fetch.all(large)
        part.rename(target)
    return target


async def listed(remote: Remote, patience: Patience) -> Listing:
    """The files that a server reads. Raises LoadError."""
    soon = replace(patience, stall=min(patience.stall, _FIRST_ANSWER))
    found = await _Patience(soon, SourceUnavailable).until_done(remote.listing)
    return replace(found, files=tuple(_needed(remote, found)))


class _Patience:
    """Tries again for as long as something moves now and then."""

    def __init__(self, patience: Patience, end: type[LoadError]) -> None:
        self._patience = patience
        self._end = end
        self._moved_at = time.monotonic()

    def moved(self) -> None:
        self._moved_at = time.monotonic()

    async def until_done(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Raises what is no interruption, and `end` after too long without a byte."""
        pause = self._patience.pause
        while True:
            moved_at = self._moved_at
            try:
                return await attempt()
            except Interrupted as error:
                idle = time.monotonic() - self._moved_at
                if idle + pause > self._patience.stall:
                    raise self._end(f"{error} (nothing has come for {idle:.0f} s)") from error
                if self._moved_at != moved_at:
                    pause = self._patience.pause
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._patience.stall / 4)


class _Fetch:
    """Brings files, some side by side, to a folder."""

    def __init__(
        self, remote: Remote, folder: Path, progress: Progress, patience: Patience
    ) -> None:
        self._remote = remote
        self._folder = folder
        self._progress = progress
        self._piece_timeout = patience.stall / 2
        self._patience = _Patience(patience, SourceStalled)

    async def all(self, files: list[RemoteFile]) -> None:
        found = sum(self._size(each) for each in files)
        self._progress.begin("downloading", sum(each.size for each in files), found)
        self._patience.moved()
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(file: RemoteFile) -> None:
            async with turns:
                if not (self._folder / file.name).exists():
                    await self._patience.until_done(partial(self._attempt, file))

        try:
            async with asyncio.TaskGroup() as group:
                for file in files:
                    group.create_task(one(file))
        except* (LoadError, OSError) as errors:
            raise errors.exceptions[0] from None

    async def _attempt(self, file: RemoteFile) -> None:
        """Takes up where an earlier attempt ended, also one of an earlier process."""
        part = self._part(file)
        digest = hashlib.sha256()
        if file.sha256 is not None and part.exists():
            with part.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    digest.update(piece)
        with part.open("ab") as stream:
            async with aclosing(self._pieces(file, stream.tell())) as pieces:
                async for piece in pieces:
                    stream.write(piece)
                    digest.update(piece)
                    self._patience.moved()
                    self._progress.moved(len(piece))
            size = stream.tell()
        if size < file.size:
            raise Interrupted(f"{file.name} ended after {size} of {file.size} bytes")
        if size > file.size or file.sha256 not in (None, digest.hexdigest()):
            part.unlink()
            self._progress.moved(-size)
            raise BrokenCheckpoint(f"{file.name} came with other bytes than its source announced")
        part.rename(self._folder / file.name)

    async def _pieces(self, file: RemoteFile, start: int) -> AsyncGenerator[bytes, None]:
        """Interrupted when the next piece takes longer than half of our patience."""
        if start >= file.size:
            return
        async with aclosing(self._remote.stream(file, start)) as pieces:
            while True:
                try:
                    async with asyncio.timeout(self._piece_timeout):
                        piece = await anext(pieces, None)
                except TimeoutError as error:
                    raise Interrupted(f"{file.name} does not move") from error
                if piece is None:
                    return
                yield piece

    def _size(self, file: RemoteFile) -> int:
        for path in (self._folder / file.name, self._part(file)):
            if path.exists():
                return path.stat().st_size
        return 0

    def _part(self, file: RemoteFile) -> Path:
        return self._folder / f"{file.name}.part"


@asynccontextmanager
async def _alone(folder: Path, target: Path, progress: Progress) -> AsyncIterator[None]:
    """Two processes with one cache: the second waits, and finds what the first has brought."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        while not target.is_dir():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress.begin("waiting for another process that downloads the model")
                await asyncio.sleep(_LOCK_POLL)
        yield


def _needed(remote: Remote, listing: Listing) -> list[RemoteFile]:
    files = [
        each
        for each in listing.files
        if each.name.endswith(_KINDS) and not each.name.startswith(_SECOND_COPIES)
    ]
    if not any(each.name.endswith(".safetensors") for each in files):
        raise BrokenCheckpoint(f"{remote.name} has no safetensors files")
    return sorted(files, key=lambda each: each.size)


def _make_sure_of_space(folder: Path, files: list[RemoteFile]) -> None:
    have = sum(path.stat().st_size for path in folder.iterdir())
    missing = sum(each.size for each in files) - have
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise DoesNotFit(
            f"the model's files need {missing / 2**30:.1f} GiB more in {folder}; "
            f"{free / 2**30:.1f} GiB are free"
        )
