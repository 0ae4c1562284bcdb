"""What a grammar was made into, as bytes: between processes, and on disk.

A line of JSON that says what follows and its hash, then the arrays as they lie in memory. Nothing
in it is run when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

import numpy as np

from skirret_server.grammar.automaton import START, Automaton
from skirret_server.grammar.errors import BadGrammar, BadTool, GrammarError, TooComplex
from skirret_server.grammar.making import Made

_ERRORS: dict[str, type[GrammarError]] = {one.__name__: one for one in (BadGrammar, TooComplex)}


class Corrupt(Exception):
    """The bytes are not what was packed."""


def packed(made: Made | GrammarError) -> bytes:
    if isinstance(made, GrammarError):
        index = made.index if isinstance(made, BadTool) else None
        kind = "BadTool" if isinstance(made, BadTool) else type(made).__name__
        return _headed({"error": kind, "reason": str(made), "index": index}, b"")
    found = made.automaton
    arrays = (
        found.class_of.astype(np.uint8), found.table.astype(np.int32),
        found.accepts.astype(np.bool_), made.likely.astype(np.int16),
    )  # fmt: skip
    head = {"shape": found.table.shape, "unenforced": sorted(made.unenforced)}
    return _headed(head, b"".join(array.tobytes() for array in arrays))


def unpacked(data: bytes) -> Made | GrammarError:
    """Raises Corrupt."""
    line, _, body = data.partition(b"\n")
    try:
        head = json.loads(line)
        if head.pop("sha256") != _hash(head, body):
            raise Corrupt("it was changed")
        if "error" in head:
            return _error(head)
        return Made(*_arrays(head["shape"], body), frozenset(head["unenforced"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{type(error).__name__}: {error}") from error


def _headed(head: Mapping[str, object], body: bytes) -> bytes:
    return json.dumps({**head, "sha256": _hash(head, body)}).encode() + b"\n" + body


def _hash(head: Mapping[str, object], body: bytes) -> str:
    return sha256(json.dumps(dict(head), sort_keys=True).encode() + b"\n" + body).hexdigest()


def _error(head: dict[str, object]) -> GrammarError:
    reason = str(head["reason"])
    if head["error"] == "BadTool":
        return BadTool(int(str(head["index"])), reason)
    return _ERRORS[str(head["error"])](reason)


def _arrays(shape: list[int], body: bytes) -> tuple[Automaton, np.ndarray]:
    states, classes = shape
    sizes = (256, 4 * states * classes, states, 2 * states)
    if min(states - START, classes) < 1 or sum(sizes) != len(body):
        raise Corrupt("its size is another")
    parts, start = [], 0
    for size in sizes:
        parts.append(body[start : start + size])
        start += size
    class_of = np.frombuffer(parts[0], np.uint8)
    table = np.frombuffer(parts[1], np.int32).reshape(states, classes)
    if class_of.max() >= classes or table.min() < 0 or table.max() >= states:
        raise Corrupt("it leads to states that it hasn't")
    accepts = np.frombuffer(parts[2], np.bool_)
    return Automaton(class_of, table, accepts), np.frombuffer(parts[3], np.int16)
