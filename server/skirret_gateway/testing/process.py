"""A gateway in a process of its own."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def running(*flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """The process and the port it says that it listens on."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "skirret_gateway", "--host", "127.0.0.1", "--port", "0", *flags),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(20):
            found = None
            while found is None:
                line = await process.stderr.readline()
                assert line, "it ended before it listened"
                found = re.search(rb"listening on .*:(\d+)", line)
        yield process, int(found[1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
