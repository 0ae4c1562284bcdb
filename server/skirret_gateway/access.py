"""One line of JSON for each request: who asked whom and what came of it, never what it said."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import TextIO

from skirret_gateway.metrics import CLIENT_GONE
from skirret_gateway.reply import Reply
from skirret_gateway.request import Request

QUIET = frozenset({"/health", "/ready", "/metrics", "/internal/demand"})  # asked every few seconds

_SHOWN = 200  # characters of what a client may have made up
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_HELD_LINES = 100


class AccessLog:
    """Lines are held back until `flush`, which is to be called every second or so."""

    def __init__(self, out: TextIO, wall_clock: Callable[[], float] = time.time) -> None:
        self._out = out
        self._wall_clock = wall_clock
        self._lines: list[str] = []

    def answered(self, request: Request, reply: Reply, seconds: float) -> None:
        if request.path in QUIET:
            return
        gone = request.is_gone and not reply.is_ended
        line = {
            "time": round(self._wall_clock(), 3),
            "request": request.id,
            "method": request.method[:_SHOWN],
            "path": request.path[:_SHOWN],
            "status": CLIENT_GONE if gone else reply.status,
            "seconds": round(seconds, 4),
            **request.notes,
        }
        trace = _TRACE.fullmatch(request.header(b"traceparent") or b"")
        if trace:
            line["trace"] = trace[1].decode()
        self._lines.append(json.dumps(line))
        if len(self._lines) >= _HELD_LINES:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._out.write("\n".join([*lines, ""]))
            self._out.flush()
