"""Tasks beside each other, of which the first failure is everybody's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Something that goes on while a block runs: ends with it, and fails it when it fails."""
    with first_failure():
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(work)
            yield
            task.cancel()


@contextmanager
def first_failure() -> Iterator[None]:
    """Raises what failed first in a TaskGroup, instead of a group of one or more."""
    try:
        yield
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
