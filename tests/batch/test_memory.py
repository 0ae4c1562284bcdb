"""A batch is never in memory: what it holds grows with the lines' number, not with their size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from skirret_batch.completions import Answer
from skirret_batch.folder import Folder
from skirret_batch.plan import Body
from skirret_batch.testing import FakeCompletions, chat_line, completion, submit
from skirret_batch.worker import Worker, WorkerSettings

MIB = 1 << 20
LINES = 1500
FILLER = "x" * 8000  # in each request, and in each answer


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


async def answer(request: Body) -> Answer:
    said = {"role": "user", "content": FILLER}
    return completion({**request, "messages": [said]})


@pytest.mark.usefixtures("traced")
async def test_a_batch_of_many_megabytes_needs_few(folder: Folder, fast: WorkerSettings) -> None:
    lines = [chat_line(str(n), str(n), metadata={"filler": FILLER}) for n in range(LINES)]
    size = sum(map(len, lines))
    batch_id = await submit(folder, *lines)
    del lines
    settings = replace(
        fast, flush_bytes=MIB // 4, most_buffered=MIB, part_size=MIB, shard_lines=500
    )
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    record = await Worker(folder, batch_id, FakeCompletions(answer), settings, slot="0").live()
    _, highest = tracemalloc.get_traced_memory()

    assert record.batch.request_counts.completed == LINES
    assert size > 11 * MIB
    assert highest - before < 7 * MIB
