"""An input file: checked, renamed to another model, cut down to some of its lines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from skirret_api.openai import BATCH_ENDPOINTS, BatchError
from skirret_batch.plan import TOKENS_PER_BYTE, Keys, Reading, canonical
from skirret_batch.record import endpoint_of

_BOM = b"\xef\xbb\xbf"
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Examined:
    endpoint: str
    requests: int
    models: tuple[str, ...]
    tokens: int  # of the prompts
    errors: tuple[BatchError, ...]
    is_estimated: bool = True  # the tokens
    seconds: float | None = None  # that a batch of it may take, where a server knows


def examine(file: IO[bytes], most_lines: int) -> Examined:
    """What the file says, by the rules of the server that will read it; names of models aside.

    The endpoint is that of the first line that has one.
    """
    endpoint = _endpoint(file)
    file.seek(0)
    with TemporaryFile() as heads:
        reading = Reading(endpoint, most_lines, Keys(heads, canonical, TOKENS_PER_BYTE))
        while piece := file.read(_PIECE):
            reading.feed(piece)
        reading.finish()
    index = reading.index
    return Examined(
        endpoint=endpoint,
        requests=len(index),
        models=tuple(reading.models),
        tokens=sum(index[ordinal].tokens for ordinal in range(len(index))),
        # Two names may be of one model: that is for the server to say.
        errors=tuple(reading.errors(dict.fromkeys(reading.models, "known"))),
    )


def renamed(file: IO[bytes], model: str) -> IO[bytes]:
    """The same requests for another model; what is no request stays, for the server to refuse."""
    return written(_renamed(line, model) for line in _lines(file))


def chosen(file: IO[bytes], custom_ids: set[str]) -> tuple[IO[bytes], set[str]]:
    """The lines with these ids, as they are; and the ids that were found."""
    found: set[str] = set()

    def lines() -> Iterator[bytes]:
        for line in _lines(file):
            custom_id = (_request(line) or {}).get("custom_id")
            if isinstance(custom_id, str) and custom_id in custom_ids:
                found.add(custom_id)
                yield line.rstrip(b"\n") + b"\n"

    return written(lines()), found


def custom_ids(pieces: Iterable[bytes]) -> set[str]:
    """Of an output or error file."""
    with written(pieces) as file:
        return {json.loads(line)["custom_id"] for line in _lines(file) if line.strip()}


def decompressed(path: Path) -> IO[bytes]:
    """What a gzip file holds. Raises OSError or EOFError for one that is broken."""
    with gzip.open(path) as file:
        return written(iter(lambda: file.read(_PIECE), b""))


def written(pieces: Iterable[bytes]) -> IO[bytes]:
    """A temporary file that holds these bytes."""
    file: IO[bytes] = TemporaryFile()  # noqa: SIM115 the caller closes it
    try:
        file.writelines(pieces)
    except BaseException:
        file.close()
        raise
    return file


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Ended by \\n alone, as the server splits them."""
    file.seek(0)
    for number, line in enumerate(file):
        yield line.removeprefix(_BOM) if number == 0 else line


def _endpoint(file: IO[bytes]) -> str:
    for line in _lines(file):
        url = (_request(line) or {}).get("url")
        if isinstance(url, str) and (endpoint := endpoint_of(url)) is not None:
            return endpoint
    return BATCH_ENDPOINTS[0]


def _renamed(line: bytes, model: str) -> bytes:
    request = _request(line)
    body = request.get("body") if request else None
    if request is None or not isinstance(body, dict):
        return line
    body["model"] = model
    try:
        return json.dumps(request, allow_nan=False).encode() + b"\n"
    except ValueError:  # a number no JSON has
        return line


def _request(line: bytes) -> dict[str, Any] | None:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None
