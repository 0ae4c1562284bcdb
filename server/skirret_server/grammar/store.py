"""Compiled grammars on disk, so that a server that starts again needs not compile them again."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

from skirret_server.grammar.errors import GrammarError
from skirret_server.grammar.making import Made
from skirret_server.grammar.packing import Corrupt, unpacked
from skirret_server.grammar.spec import Spec

log = logging.getLogger("skirret.grammar")

_SUFFIX = ".grammar"


class GrammarStore:
    """A folder with a file a grammar; those read longest ago go when it has too many bytes.

    Several servers may share one. A name is made of what was asked and of the source that compiles
    it; the model's vocabulary isn't in it, since an automaton reads bytes and knows no tokens.
    """

    def __init__(self, folder: Path, most_bytes: int = 256 << 20) -> None:
        """Raises OSError when nothing can be written there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._most_bytes = most_bytes
        self._version = _source_version()

    def get(self, spec: Spec) -> Made | None:
        """None when it isn't there, or can't be used any more."""
        path = self._path(spec)
        try:
            found = unpacked(path.read_bytes())
            os.utime(path)
        except FileNotFoundError:
            return None
        except (Corrupt, OSError) as error:
            log.warning("a stored grammar is dropped", extra={"cause": str(error)})
            with suppress(OSError):
                path.unlink()
            return None
        return None if isinstance(found, GrammarError) else found

    def put(self, spec: Spec, data: bytes) -> None:
        """What `packed` made. A folder that is full or gone costs a warning, and no answer."""
        if len(data) > self._most_bytes:
            return
        try:
            with NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(data)
            os.replace(file.name, self._path(spec))
            self._evict()
        except OSError as error:
            log.warning("a grammar can't be stored", extra={"cause": str(error)})

    def _path(self, spec: Spec) -> Path:
        text = f"{self._version}\n{spec.kind}\n{spec.source}"
        return self._folder / (sha256(text.encode()).hexdigest() + _SUFFIX)

    def _evict(self) -> None:
        files = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # another server was faster
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        size = sum(each for _, each, _ in files)
        for _, each, path in sorted(files):
            if size <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            size -= each


def _source_version() -> str:
    """Changes with every line of this package."""
    found = sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
