"""What a batch costs and how soon it tells: figures, each printed by the test that measures it.

What holds on any machine is in every run; what is measured by the clock, and with the small model,
by `make e2e-full` on a quiet one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skirret_api import internal
from skirret_api.launch import LaunchSettings, ServerSettings
from skirret_api.tenants import FolderStore
from skirret_batch import record as records
from skirret_batch.completions import Answer, AsgiCompletions, Template, Turn
from skirret_batch.folder import Folder
from skirret_batch.record import Record, load
from skirret_batch.so_far import so_far
from skirret_batch.testing import chat_line, outcome, submit
from skirret_batch.worker import Worker, WorkerSettings
from skirret_server.api.app import Access
from skirret_server.api.application import application
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.served import Served
from skirret_server.core import Engine, GenerateRequest, Sampling
from skirret_server.engine import open as open_engine
from skirret_server.load.progress import Progress
from skirret_server.serve import Loaded, served_from
from skirret_server.testing import Script, TimedEngine, tiny_model

SMOLLM2 = Path(os.environ.get("SKIRRET_CACHE", ".cache")) / "models/smollm2"
FULL = [pytest.mark.full, pytest.mark.model]


def figure(name: str, value: float, unit: str, limit: str) -> None:
    print(f"figure: {name}: {value:.3g} {unit} (limit {limit})")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@dataclass
class Bench:
    """An engine behind its API, and a store."""

    served: Served
    store: Folder
    completions: AsgiCompletions
    asked: dict[str, float] = field(default_factory=dict)  # when, by the last message
    answered: dict[str, float] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        return self.served.engine

    def start(self, batch_id: str) -> asyncio.Task[Record]:
        worker = Worker(self.store, batch_id, self, WorkerSettings(), slot="0")
        return asyncio.create_task(worker.live())

    async def complete(self, endpoint: str, body: bytes, turn: Turn) -> Answer:
        text = json.loads(body)["messages"][-1]["content"]
        self.asked[text] = time.monotonic()
        answer = await self.completions.complete(endpoint, body, turn)
        self.answered[text] = time.monotonic()
        return answer

    async def model(self, name: str) -> str | None:
        return await self.completions.model(name)

    async def template(self, name: str) -> Template:
        return await self.completions.template(name)

    def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        assert self.served.template is not None
        return list(self.served.tokenizer.encode_chat(self.served.template.render(messages)))


def bench(engine: Engine, model: Path, folder: Path) -> Bench:
    settings = LaunchSettings(model_path=str(model), served_model_name=("m",))
    served = served_from(Loaded(model, engine), settings)
    lifecycle = Lifecycle(Progress().status)
    lifecycle.serve(served)
    app = application(lifecycle, Access(internal_token="token"))
    headers = {internal.TOKEN: "token", internal.LANE: internal.BATCH}
    store = Folder(FolderStore(path=str(folder / "store")))
    return Bench(served, store, AsgiCompletions(app, headers, 600))


@asynccontextmanager
async def opened(model: Path, folder: Path) -> AsyncIterator[Bench]:
    """A real engine."""
    given = ServerSettings(max_total_tokens=32768)
    engine = await asyncio.to_thread(open_engine, given, model, Progress())
    try:
        yield bench(engine, model, folder)
    finally:
        await engine.close()


async def directly(bench: Bench, texts: Sequence[str], tokens: int) -> float:
    """Seconds that the engine takes for all of them, asked at once."""
    prompts = [bench.prompt([{"role": "user", "content": text}]) for text in texts]

    async def one(number: int, prompt: list[int]) -> None:
        sampling = Sampling(max_tokens=tokens, ignore_eos=True)
        request = GenerateRequest(f"direct-{number}", prompt, sampling, lane="batch")
        async for _ in bench.engine.generate(request):
            pass

    began = time.monotonic()
    await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    return time.monotonic() - began


async def as_a_batch(bench: Bench, texts: Sequence[str], tokens: int) -> float:
    """Seconds from the first line asked to the last one answered."""
    bench.asked.clear()
    lines = [chat_line(text, text, max_tokens=tokens, ignore_eos=True) for text in texts]
    record = await bench.start(await submit(bench.store, *lines))
    assert record.batch.request_counts.completed == len(lines)
    return max(bench.answered.values()) - min(bench.asked.values())


async def throughput(bench: Bench, lines: int, tokens: int, rounds: int) -> float:
    """Of a batch, as a share of the engine's own; both in turn, the best of each."""
    direct, batch = [], []
    for number in range(rounds):
        direct.append(await directly(bench, [f"d{number} {n}" for n in range(lines)], tokens))
        batch.append(await as_a_batch(bench, [f"b{number} {n}" for n in range(lines)], tokens))
    print(f"direct {direct}, as a batch {batch} s")
    return min(direct) / min(batch)


@pytest.mark.full
async def test_a_batch_is_as_fast_as_the_scripted_engine(tiny: Path, tmp_path: Path) -> None:
    script = Script(tokens=b"x" * 10, per_update=10, ends=None)
    scripted = bench(TimedEngine(script, 0.5, slots=16), tiny, tmp_path)
    share = await throughput(scripted, lines=160, tokens=10, rounds=1)
    figure("throughput of a batch, of the scripted engine's", share, "", "0.95")
    assert share >= 0.95


@pytest.mark.xfail(reason="seen: 0.80; the cause is not found yet")
@pytest.mark.full
@pytest.mark.model
async def test_a_batch_is_as_fast_as_the_small_model(tmp_path: Path) -> None:
    async with opened(SMOLLM2, tmp_path) as small:
        share = await throughput(small, lines=192, tokens=32, rounds=3)
    figure("throughput of a batch, of the engine's with the small model", share, "", "0.95")
    assert share >= 0.95


@dataclass
class Watched:
    """What was seen of a batch while it ran: when, how many done, and what a crash would lose."""

    done: list[tuple[float, int]] = field(default_factory=list)  # seconds, lines; as it changed
    oldest: float = 0.0  # seconds since the oldest answer came that isn't committed


async def watch(bench: Bench, batch_id: str, work: asyncio.Task[Record]) -> Watched:
    seen, began = Watched(), time.monotonic()
    while not work.done():
        await asyncio.sleep(0.1)
        answered = dict(bench.answered)
        record, _ = await load(bench.store, batch_id)
        counts = record.batch.request_counts
        if not seen.done or seen.done[-1][1] != counts.completed:
            seen.done.append((time.monotonic() - began, counts.completed))
        if record.batch.status != "in_progress":
            continue
        lines = b"".join(
            [piece async for piece in (await so_far(bench.store, batch_id, "0")).lines()]
        )
        committed = {json.loads(line)["custom_id"] for line in lines.splitlines()}
        ages = [time.monotonic() - at for text, at in answered.items() if text not in committed]
        seen.oldest = max([seen.oldest, *ages])
    return seen


@pytest.mark.full
async def test_progress_is_told_and_work_is_safe_within_five_seconds(
    tiny: Path, tmp_path: Path
) -> None:
    script = Script(tokens=b"x", ends=None)
    scripted = bench(TimedEngine(script, 1.0, slots=8), tiny, tmp_path)
    lines = [chat_line(str(n), str(n), max_tokens=1) for n in range(96)]
    batch_id = await submit(scripted.store, *lines)
    seen = await watch(scripted, batch_id, scripted.start(batch_id))
    times, counts = zip(*seen.done, strict=True)
    gap = max(b - a for a, b in zip(times, times[1:], strict=False))
    figure("progress of a batch is told every", gap, "s at most", "5")
    figure("a crash of a worker loses", seen.oldest, "s of work at most", "5")
    assert list(counts) == sorted(counts)
    assert max(gap, seen.oldest) <= 5


@pytest.mark.full
async def test_a_cancel_stops_the_work_and_keeps_what_was_done(tiny: Path, tmp_path: Path) -> None:
    def answer(request: GenerateRequest) -> Script:
        return Script(tokens=b"x" * request.sampling.max_tokens, ends=None)

    engine = TimedEngine(answer, 0.05)
    scripted = bench(engine, tiny, tmp_path)
    lines = [chat_line(str(n), str(n), max_tokens=1 + n % 2 * 1500) for n in range(100)]
    batch_id = await submit(scripted.store, *lines)
    work = scripted.start(batch_id)
    while len(scripted.answered) < 40:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await records.change(scripted.store, batch_id, lambda each: records.cancel(each, time.time()))
    while engine.running:
        await asyncio.sleep(0.01)
    stopped = time.monotonic() - began
    record = await work
    ended = time.monotonic() - began
    figure("cancel: all work stopped after", stopped, "s", "2")
    figure("cancel: files there after", ended, "s", "10")
    files = await outcome(scripted.store, record)
    assert (record.batch.status, len(files.ids), len(files.output) >= 40) == (
        "cancelled",
        100,
        True,
    )
    assert stopped <= 2
    assert ended <= 10


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


@pytest.mark.parametrize(
    ("model", "each"),
    [pytest.param("tiny", 10), pytest.param("smollm2", 50, marks=FULL)],
)
async def test_prompts_that_begin_alike_are_found_in_the_cache(
    model: str, each: int, tiny: Path, tmp_path: Path
) -> None:
    words = ["careful", "brief", "honest", "cheerful", "learned", "patient", "formal", "playful"]
    dice = random.Random(3)
    systems = [
        f"Assistant {n}. You are " + ", ".join(dice.choices(words, k=90)) + "." for n in range(20)
    ]
    chats = [
        [{"role": "system", "content": system}, {"role": "user", "content": f"Question {n}-{m}?"}]
        for n, system in enumerate(systems)
        for m in range(each)
    ]
    dice.shuffle(chats)
    async with opened(tiny if model == "tiny" else SMOLLM2, tmp_path) as real:
        prompts = sorted(map(real.prompt, chats))
        ideal = sum(common(a, b) for a, b in zip(prompts, prompts[1:], strict=False))
        lines = [chat_line(str(n), messages=chat, max_tokens=2) for n, chat in enumerate(chats)]
        record = await real.start(await submit(real.store, *lines))
    usage = record.batch.usage
    assert usage is not None
    details = usage.input_tokens_details
    share = details.cached_tokens / ideal
    print(f"{usage.input_tokens} tokens of prompts, {ideal} in an ideal tree, {details}")
    figure(f"cached tokens of prompts, of an ideal tree's ({model})", share, "", "0.9")
    assert share >= 0.9


class Online:
    """People: each asks for a short answer, one after the other, at random moments."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._dice = random.Random(5)
        self._number = 0

    async def visit(self, seconds: float) -> list[float]:
        """Seconds to the first token, of everybody who comes in so many seconds."""
        until, waits = time.monotonic() + seconds, []
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < until:
                waits.append(tasks.create_task(self._ask()))
                await asyncio.sleep(self._dice.uniform(0.5, 1.5))
        return [each.result() for each in waits]

    async def _ask(self) -> float:
        self._number += 1
        text = f"{self._number}: what is the capital of the country with this number?"
        prompt = self._bench.prompt([{"role": "user", "content": text}])
        sampling = Sampling(max_tokens=16, ignore_eos=True)
        request = GenerateRequest(f"online-{self._number}", prompt, sampling)
        began, first = time.monotonic(), 0.0
        async for _ in self._bench.engine.generate(request):
            first = first or time.monotonic() - began
        return first


def p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@pytest.mark.xfail(reason="seen: 1.66 on two cores; the cause is not found yet")
@pytest.mark.full
@pytest.mark.model
async def test_nobody_notices_a_batch(tmp_path: Path) -> None:
    """In turn without and with a batch; and the engine is busy when only the batch is there."""
    async with opened(SMOLLM2, tmp_path) as small:
        people = Online(small)
        await people.visit(5)
        alone: list[float] = []
        beside: list[float] = []
        busy: list[float] = []
        for number in range(4):
            alone += await people.visit(40)
            lines = [
                chat_line(f"{number}-{n}", f"{number}-{n}: tell a long story", max_tokens=200)
                for n in range(400)
            ]
            batch_id = await submit(small.store, *lines)
            work = small.start(batch_id)
            await asyncio.sleep(8)
            before, began = small.engine.stats(), time.monotonic()
            await asyncio.sleep(10)
            after, took = small.engine.stats(), time.monotonic() - began
            busy.append((after.step_seconds - before.step_seconds) / took)
            full = (after.generation_tokens - before.generation_tokens) / took
            before, began = after, time.monotonic()
            beside += await people.visit(40)
            after, took = small.engine.stats(), time.monotonic() - began
            shared = (after.generation_tokens - before.generation_tokens) / took
            print(f"tokens a second: {full:.0f} without people, {shared:.0f} with them")
            await records.change(small.store, batch_id, lambda each: records.discard(each, 0))
            await work
    ratio = p95(beside) / p95(alone)
    print(f"p95 alone {p95(alone):.3f} s, beside {p95(beside):.3f} s, n={len(alone)}+{len(beside)}")
    figure("time to people's first token beside a batch, p95, of without", ratio, "", "1.3")
    figure("time the engine steps while only a batch is there", min(busy), "", "0.9")
    assert ratio <= 1.3
    assert min(busy) >= 0.9


class Embedded:
    """`serve`, in a process that is killed and started again."""

    def __init__(self, model: Path, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        command = [sys.executable, "-m", "skirret_server", "serve", str(model)]
        flags = [f"--file-storage-path={folder / 'store'}", "--served-model-name=m"]
        port = self._url.rpartition(":")[2]
        self._command = [*command, *flags, f"--port={port}", "--max-total-tokens=32768"]
        self._log = folder / "log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def until(self, condition: Callable[[Any], bool], path: str) -> None:
        """Polls a route until its answer is as wished."""
        deadline = time.monotonic() + 300
        while True:
            assert time.monotonic() < deadline, self._log.read_text()[-2000:]
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            try:
                with urllib.request.urlopen(self._url + path, timeout=10) as answer:
                    if condition(json.load(answer)):
                        return
            except OSError:
                pass
            time.sleep(0.05)


@pytest.mark.parametrize("model", [pytest.param("tiny"), pytest.param("smollm2", marks=FULL)])
async def test_an_embedded_batch_goes_on_soon_after_a_kill(
    model: str, tiny: Path, tmp_path: Path
) -> None:
    store = Folder(FolderStore(path=str(tmp_path / "store")))
    lines = [
        chat_line(str(n), f"{n}: tell a story", max_tokens=300, ignore_eos=True) for n in range(400)
    ]
    await submit(store, *lines)
    server = Embedded(tiny if model == "tiny" else SMOLLM2, tmp_path)

    def works(status: Any) -> bool:
        return bool(status["running"] > 1)  # one token is generated to be ready

    try:
        await asyncio.to_thread(server.until, works, "/status")
        server.kill()
        killed = time.monotonic()
        server.start()
        await asyncio.to_thread(server.until, works, "/status")
        took = time.monotonic() - killed
    finally:
        server.kill()
    figure(f"an embedded batch goes on after a kill ({model}) in", took, "s", "15")
    assert took <= 15
