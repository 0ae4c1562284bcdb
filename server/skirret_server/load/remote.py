"""A model that lies elsewhere: what a source must be able to do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from skirret_server.load.errors import SourceUnavailable


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str  # without folders
    size: int  # bytes
    sha256: str | None = None  # where the source knows it


@dataclass(frozen=True, slots=True)
class Listing:
    version: str  # of all files together: the same version is the same bytes
    files: tuple[RemoteFile, ...]


class Interrupted(SourceUnavailable):
    """A transfer broke off; it can be taken up again."""


class Remote(Protocol):
    """Raises LoadErrors; Interrupted for what may pass by itself."""

    @property
    def name(self) -> str:
        """As messages call it, and in letters that a folder may be called."""

    async def listing(self) -> Listing: ...

    def stream(self, file: RemoteFile, start: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` on, in pieces."""

    async def close(self) -> None: ...
