"""Shows on a terminal how far loading is; a log gets a line now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TextIO

from skirret_server.load.progress import LoadStatus

_log = logging.getLogger(__name__)

_FRAME = 0.1  # seconds
_LINE = 10.0  # seconds between two lines of a log
_WIDTH = 30  # characters


async def show(status: Callable[[], LoadStatus], out: TextIO) -> None:
    """Until it is cancelled."""
    if not out.isatty():
        while True:
            await asyncio.sleep(_LINE)
            _log.info("loading: %s", told(status()))
    try:
        while True:
            out.write(f"\r\x1b[K{drawn(status())}")
            out.flush()
            await asyncio.sleep(_FRAME)
    finally:
        out.write("\r\x1b[K")
        out.flush()


def drawn(status: LoadStatus) -> str:
    if status.percent is None:
        return told(status)
    full = round(status.percent / 100 * _WIDTH)
    return f"[{'#' * full}{'.' * (_WIDTH - full)}] {told(status)}"


def told(status: LoadStatus) -> str:
    """`reading weights 42%, 812 MB/s, 3 s left`"""
    parts = [status.phase]
    if status.percent is not None:
        parts[0] += f" {status.percent:.0f}%"
    if status.bytes_per_second:
        parts.append(f"{status.bytes_per_second / 1e6:.0f} MB/s")
    if status.eta_seconds is not None:
        parts.append(f"{status.eta_seconds:.0f} s left")
    return ", ".join(parts)
