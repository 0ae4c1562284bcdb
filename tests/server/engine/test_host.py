"""Front, scheduler and cache without a model; and what tells how they do."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest

from skirret_api.launch import LaunchSettings
from skirret_server import __main__ as released
from skirret_server.cache.journal import Journal
from skirret_server.core import EngineError, GenerateRequest, Lane, Sampling, Stats
from skirret_server.engine.engine import SteppingEngine
from skirret_server.engine.report import Report, line
from skirret_server.load.bar import drawn, show
from skirret_server.load.progress import LoadStatus, Progress
from skirret_server.testing import __main__ as for_tests
from skirret_server.testing import null


@pytest.fixture
async def engine(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SteppingEngine]:
    """Of 160 tokens: it has to retract."""
    monkeypatch.setattr(null, "STEP_SECONDS", 0.0)
    settings = LaunchSettings(
        model_path=str(tiny),
        max_total_tokens=160,
        page_size=4,
        chunked_prefill_size=64,
        max_queued_requests=1000,
    )
    loaded = null.load(settings, Progress())
    assert isinstance(loaded.engine, SteppingEngine)
    yield loaded.engine
    await loaded.engine.close()


async def test_a_thousand_requests_of_which_a_third_are_aborted_leave_nothing(
    engine: SteppingEngine,
) -> None:
    dice = random.Random(4)
    prefixes = [[dice.randrange(250) for _ in range(60)] for _ in range(4)]
    ended = aborted = 0

    async def one(index: int) -> None:
        nonlocal ended, aborted
        prompt = dice.choice(prefixes)[: dice.randrange(30)] + [index % 250]
        lane: Lane = "batch" if dice.random() < 0.3 else "interactive"
        request = GenerateRequest(
            str(index), prompt, Sampling(max_tokens=dice.choice((1, 2, 4, 8, 60))), lane
        )
        reads = dice.choice((0, 1, 2, 5, 10)) if dice.random() < 0.3 else 1000
        async with aclosing(engine.generate(request)) as updates:  # type: ignore[type-var]
            if reads == 0:  # leaves before the first token
                taken = asyncio.ensure_future(anext(updates))
                await asyncio.sleep(dice.random() / 100)
                taken.cancel()
                await asyncio.gather(taken, return_exceptions=True)
                return
            async for update in updates:
                reads -= 1
                ended += update.finish is not None
                if reads == 0:
                    aborted += update.finish is None
                    return

    try:
        await asyncio.gather(*map(one, range(1000)))
    except EngineError as error:
        pytest.fail(f"nobody asked for this: {error}")
    async with asyncio.timeout(5):
        while not engine._stepper.is_idle or engine._open:
            await asyncio.sleep(0.01)
    stepper, cache = engine._stepper, engine._stepper._scheduler.cache
    stepper.check()
    assert ended > 500
    assert aborted > 50
    assert stepper.stats().retractions > 0
    assert not stepper._clients
    assert not stepper._sequences
    assert await engine.flush_cache()
    assert cache.pool.free == cache.pool.size
    assert not cache.tree.roots
    assert not cache.tree._heap


@pytest.mark.parametrize(("entry", "backend"), [(released, "null"), (for_tests, "reference")])
def test_the_null_runner_is_refused_unless_tests_ask_for_it(
    entry: ModuleType,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "serve", "m", "--attention-backend", backend])
    with pytest.raises(SystemExit) as ended:
        sys.exit(entry.main())
    assert ended.value.code == 2
    assert "null" in capsys.readouterr().err


def stats(**changed: int | float) -> Stats:
    return Stats(
        running={"interactive": 8, "batch": 2},
        waiting={"interactive": 1, "batch": 0},
        kv_usage=0.0612,
        **changed,  # type: ignore[arg-type]
    )


def test_the_decode_line_is_read_by_what_reads_sglangs() -> None:
    now = stats(
        generation_tokens=5000,
        steps=200,
        step_seconds=4.0,
        cache_query_tokens=100,
        cache_hit_tokens=75,
    )
    assert line(stats(), now, 10.0) == (
        "Decode batch, #running-req: 10, #batch-lane: 2, token usage: 0.06, "
        "gen throughput (token/s): 500.00, #queue-req: 1, step (ms): 20.0, cache hit: 0.75, "
        "#retracted-req: 0"
    )


def test_a_line_comes_after_ten_seconds_of_work_and_counts_no_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    report = Report(0.0)
    report.step(stats(), 100.0)
    report.step(stats(generation_tokens=90), 109.0)
    report.rest()
    report.step(stats(generation_tokens=100), 200.0)
    report.step(stats(generation_tokens=200), 210.0)
    assert [record.message.split(", ")[4] for record in caplog.records] == [
        "gen throughput (token/s): 10.00"
    ]


def test_a_bar_says_what_is_loaded_how_fast_and_how_long_it_will_take() -> None:
    status = LoadStatus("reading weights", 50.0, 8e8, 3.2)
    bar = f"[{'#' * 15}{'.' * 15}]"
    assert drawn(status) == f"{bar} reading weights 50%, 800 MB/s, 3 s left"
    assert drawn(LoadStatus("importing torch")) == "importing torch"


async def test_the_bar_is_gone_when_loading_is_done() -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    shown = asyncio.create_task(show(lambda: LoadStatus("checking"), out))
    await asyncio.sleep(0)
    shown.cancel()
    await asyncio.wait({shown})
    assert out.getvalue() == "\r\x1b[Kchecking\r\x1b[K"


def test_who_has_missed_more_than_is_kept_is_told_everything() -> None:
    journal = Journal(kept=2)
    for name in "abc":
        journal.note([name])
    assert journal.since(1).stored == ("b", "c")
    assert not journal.since(1).is_full
    assert journal.since(0).is_full
    assert journal.since(0).stored == ("a", "b", "c")
