"""The checks of gpu_check.sh: attention, sampling, greedy answers, throughput."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skirret_api.launch import ServerSettings
from skirret_server import engine as engines
from skirret_server.attention.flashinfer import FlashInfer, StaticMemory
from skirret_server.attention.reference import Reference
from skirret_server.core import GenerateRequest, Sampling
from skirret_server.engine.engine import SteppingEngine
from skirret_server.engine.hardware import Hardware, hardware
from skirret_server.engine.pool import KvPool
from skirret_server.load.progress import Progress
from skirret_server.model.description import Description
from skirret_server.sampling.launched import Sampler
from skirret_server.scheduler.sequence import Sequence
from skirret_server.testing import tiny_model
from skirret_server.testing.drawing import chi_squared, probabilities
from skirret_server.testing.flashinfer import fake_hardware
from skirret_server.testing.layouts import RandomStep, random_step

ROOT = Path(__file__).resolve().parents[1]
SIZE = 64  # of heads: one size, since each is compiled for itself
BUDGET = 450.0  # seconds, then no check is begun any more
# Of attention in bfloat16 against float32, over values near 1: eight bits, and a sum of them.
TOLERANCE = 0.03
# Where the GPU takes another token than the CPU, the CPU found it nearly as likely.
TIE = 0.1


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    running: tuple[int, ...]
    prompt: int  # tokens
    answer: int  # tokens
    greedy: int  # tokens of each compared answer
    draws: int


REAL = Scale((1, 8, 32, 100), 128, 128, 20, 20_000)
TINY = Scale((1, 3), 8, 4, 6, 2_000)


@dataclass
class Report:
    started: float = field(default_factory=time.monotonic)
    checks: list[dict[str, Any]] = field(default_factory=list)
    throughput: list[dict[str, float]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(check["passed"] for check in self.checks)

    def run(self, name: str, check: Callable[[], str]) -> None:
        """A check tells what it saw, or raises AssertionError."""
        began = time.monotonic()
        if began - self.started > BUDGET:
            self._add(name, False, "no time left", 0.0)
            return
        try:
            seen, passed = check(), True
        except AssertionError as error:
            seen, passed = str(error), False
        self._add(name, passed, seen, time.monotonic() - began)

    def _add(self, name: str, passed: bool, seen: str, seconds: float) -> None:
        self.checks.append({"name": name, "passed": passed, "seen": seen, "seconds": seconds})
        print(f"{'ok    ' if passed else 'FAILED'} {seconds:6.1f} s  {name}: {seen}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    cache = Path(os.environ.get("SKIRRET_CACHE", ROOT / ".cache"))
    parser.add_argument("--model", type=Path, default=cache / "models/smollm2")
    parser.add_argument("--output", type=Path, default=Path("gpu_check.json"))
    given = parser.parse_args(arguments)
    report = Report()
    if given.device == "cuda":
        on, scale, folder = hardware(ServerSettings(device="cuda")), REAL, given.model
        name, dtype = torch.cuda.get_device_name(0), "bfloat16"
    else:
        on, scale, name, dtype = fake_hardware(), TINY, "a CPU as a GPU", "float32"
        folder = tiny_model(Path(tempfile.mkdtemp()) / "tiny")
    facts = {"device": name, "torch": torch.__version__, "model": str(folder)}
    print(f"{name}; torch {torch.__version__}; {folder}", flush=True)
    try:
        run_all(report, on, folder, dtype, scale)
    finally:  # also when the time is up
        given.output.write_text(json.dumps(facts | dataclasses.asdict(report), indent=2))
    print(table(report.throughput))
    print(f"{'passed' if report.passed else 'FAILED'} in {time.monotonic() - report.started:.0f} s")
    return 0 if report.passed else 1


def run_all(report: Report, on: Hardware, folder: Path, dtype: str, scale: Scale) -> None:
    for title, check in attention_checks(on, getattr(torch, dtype)):
        report.run(title, check)
    for title, check in sampling_checks(on, scale):
        report.run(title, check)
    for how, options in (("as graphs", {}), ("kernel by kernel", {"disable_cuda_graph": True})):
        comparison = _bind(_finished, greedy, on, folder, dtype, scale, options)
        report.run(f"greedy answers, {how}", comparison)
    report.run(
        "throughput", _bind(_finished, throughput, on, folder, dtype, scale, report.throughput)
    )


# Attention against the reference, in float32 on the CPU


def attention_checks(on: Hardware, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], str]]]:
    shapes = {
        "decodes": [(length, 1) for length in (1, 15, 16, 300, 700)],
        "prompts": [(0, 33), (0, 1), (64, 40), (7, 200)],
        "both": [(40, 1), (0, 17), (300, 1), (9, 3)],
    }
    for page_size in (1, 16):
        for group in (3, 4, 8):
            what = f"pages of {page_size}, {group} query heads to a key"
            for name, rows in shapes.items():
                step = random_step(
                    rows, page_size, query_heads=2 * group, size=SIZE, seed=len(rows)
                )
                yield f"{name}, {what}", _bind(attended, on, step, page_size, group, dtype)
            step = random_step(
                [(1024 + at, 1) for at in range(12)],
                page_size,
                query_heads=2 * group,
                size=SIZE,
                shared=1024 // page_size,
            )
            yield f"a shared prefix, {what}", _bind(attended, on, step, page_size, group, dtype)
            yield f"a graph, {what}", _bind(replayed, on, page_size, group, dtype)
    windowed = replace(_description(4), windows=(50,), score_cap=20.0)
    step = random_step(shapes["both"], 16, query_heads=8, size=SIZE)
    yield "a window and capped scores", _bind(attended, on, step, 16, 4, dtype, windowed)


def attended(
    on: Hardware,
    step: RandomStep,
    page_size: int,
    group: int,
    dtype: torch.dtype,
    description: Description | None = None,
) -> str:
    description = description or _description(group)
    device = on.device(0)
    pool = _on(step, page_size, device.place, dtype)
    attention = FlashInfer(pool, description, device, on.library())
    inputs = (x.to(device.place, dtype) for x in (step.q_TNH, step.k_TKH, step.v_TKH))
    found = attention.plan(step.layout)(0, *inputs).float().cpu()
    return _close(found, _expected(step, page_size, description, dtype))


def replayed(on: Hardware, page_size: int, group: int, dtype: torch.dtype) -> str:
    """Three steps through one graph."""
    description, device = _description(group), on.device(0)
    steps = [
        random_step(
            [(50 + 99 * at, 1), (200, 1)], page_size, query_heads=2 * group, size=SIZE, seed=at
        )
        for at in range(3)
    ]
    largest = max(steps, key=lambda each: each.layout.pages.max())
    pool = _on(largest, page_size, device.place, dtype)
    attention = FlashInfer(pool, description, device, on.library())
    memory = StaticMemory(2, 4096, device.place)
    static = attention.static(2, memory)
    inputs = [
        torch.zeros(2, heads, SIZE, dtype=dtype, device=device.place) for heads in (2 * group, 2, 2)
    ]
    out = torch.zeros_like(inputs[0])
    static.plan(steps[0].layout)
    static.attend(0, *inputs)
    graph = device.graph()
    with graph.capture():
        out.copy_(static.attend(0, *inputs))
    seen = ""
    for step in steps:
        kv = _on(step, page_size, device.place, dtype).kv_L2PSKH
        pool.kv_L2PSKH[:, :, : kv.shape[2]] = kv
        for place, value in zip(inputs, (step.q_TNH, step.k_TKH, step.v_TKH), strict=True):
            place.copy_(value)
        memory.slots.copy_(torch.from_numpy(step.layout.slots))
        static.plan(step.layout)
        graph.replay()
        seen = _close(out.float().cpu(), _expected(step, page_size, description, dtype))
    return seen


def _description(group: int) -> Description:
    return Description(8, 8, 8, 1, 2 * group, 2, SIZE, 9999, 1e-6, (None,), tied=True)


def _on(step: RandomStep, page_size: int, place: torch.device, dtype: torch.dtype) -> KvPool:
    return KvPool(step.pool(page_size).kv_L2PSKH.to(place, dtype), page_size)


def _expected(
    step: RandomStep, page_size: int, description: Description, dtype: torch.dtype
) -> torch.Tensor:
    """In float32, of numbers rounded as the GPU's are."""
    rounded = KvPool(step.pool(page_size).kv_L2PSKH.to(dtype).float(), page_size)
    inputs = (x.to(dtype).float() for x in (step.q_TNH, step.k_TKH, step.v_TKH))
    return Reference(rounded, description).plan(step.layout)(0, *inputs)


def _close(found: torch.Tensor, expected: torch.Tensor) -> str:
    difference = float((found - expected).abs().max())
    assert difference < TOLERANCE, f"differs by {difference:.4f}"
    return f"max |difference| {difference:.4f}"


# Sampling against the distribution


def sampling_checks(on: Hardware, scale: Scale) -> Iterator[tuple[str, Callable[[], str]]]:
    for seed in (None, 1):
        for options in (
            {},
            {"temperature": 0.7, "top_k": 7},
            {"top_p": 0.7},
            {"min_p": 0.1},
            {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        ):
            sampling = Sampling(9, seed=seed, **options)  # type: ignore[arg-type]
            seeds = "own seeds" if seed else "one seed"
            yield f"draws with {options or 'nothing'}, {seeds}", _bind(draws, on, sampling, scale)


def draws(on: Hardware, sampling: Sampling, scale: Scale) -> str:
    vocabulary, device = 40, on.device(0)
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(5)) * 1.5
    request = GenerateRequest("", [1], sampling)
    many = [Sequence(request, 0, 0.0, row) for row in range(scale.draws)]
    sampler = Sampler(device, on.library(), 0)
    drawn = sampler.draw(logits.repeat(scale.draws, 1).to(device.place), many, frozenset())
    tokens = [each.token or 0 for each in drawn.outcomes()]
    expected = probabilities(logits[0], sampling) * scale.draws
    chi2, most = chi_squared(tokens, expected)
    assert chi2 < most, f"chi² {chi2:.1f}, expected at most {most:.1f}"
    return f"chi² {chi2:.1f} of at most {most:.1f}"


# The engine

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was",
    "def fibonacci(n):",
    "Water boils at",
)


async def greedy(on: Hardware, folder: Path, dtype: str, scale: Scale, more: dict[str, Any]) -> str:
    """Answers of the GPU and of the CPU; they may part where the CPU saw two likely tokens."""
    prompts = [list(_encode(folder, text)) for text in PROMPTS]
    found, expected = [], []
    for answers, make, options in (
        (found, lambda _: on, more),
        (expected, hardware, {"device": "cpu"}),
    ):
        engine = opened(folder, dtype, make, len(prompts), 4096, options)
        asked = (answer(engine, prompt, scale.greedy) for prompt in prompts)
        answers += await asyncio.gather(*asked)
        await engine.close()
    alike = 0
    for mine, theirs in zip(found, expected, strict=True):
        for ours, reference in zip(mine, theirs, strict=True):
            if ours.token != reference.token:
                second = dict(reference.top).get(ours.token, -math.inf)
                gap = reference.logprob - second
                assert gap < TIE, f"token {ours.token} where the CPU is surer by {gap:.2f}"
                break
            alike += 1
    return f"{alike} of {len(prompts) * scale.greedy} tokens alike before the first tie"


async def throughput(
    on: Hardware, folder: Path, dtype: str, scale: Scale, rows: list[dict[str, float]]
) -> str:
    most = max(scale.running)
    tokens = most * (scale.prompt + scale.answer + 16)
    engine = opened(folder, dtype, lambda _: on, most, tokens, {})
    random = np.random.default_rng(0)
    try:
        for running in scale.running:
            prompts = random.integers(4, 200, (running, scale.prompt)).tolist()
            steps, began = engine.stats().steps, time.monotonic()
            asked = (answer(engine, prompt, scale.answer, top=None) for prompt in prompts)
            given = await asyncio.gather(*asked)
            seconds = time.monotonic() - began
            assert all(len(each) == scale.answer for each in given), "an answer is short"
            rows.append(
                {
                    "running": running,
                    "tokens_per_second": running * scale.answer / seconds,
                    "ms_per_step": 1000 * seconds / (engine.stats().steps - steps),
                }
            )
    finally:
        await engine.close()
    return f"{rows[-1]['tokens_per_second']:.0f} tokens/s at {most} running"


def opened(
    folder: Path,
    dtype: str,
    make: Callable[[ServerSettings], Hardware],
    running: int,
    tokens: int,
    options: dict[str, Any],
) -> SteppingEngine:
    asked = {
        "max_running_requests": running,
        "max_total_tokens": tokens,
        "dtype": dtype,
        "chunked_prefill_size": 2048,
        "random_seed": 0,
        **options,
    }
    return engines.open(ServerSettings.model_validate(asked), folder, Progress(), _fatal, make)


async def answer(
    engine: SteppingEngine, prompt: list[int], tokens: int, top: int | None = 5
) -> list[Any]:
    sampling = Sampling(tokens, temperature=0.0, ignore_eos=True, logprobs=top)
    given: list[Any] = []
    async for update in engine.generate(GenerateRequest("", prompt, sampling)):
        given += update.tokens if top is None else update.logprobs
    return given


def table(rows: list[dict[str, float]]) -> str:
    lines = ["| running | tokens/s | ms a step |", "|---|---|---|"]
    lines += [
        f"| {row['running']:.0f} | {row['tokens_per_second']:.0f} | {row['ms_per_step']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def _encode(folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def _fatal(reason: str, message: str) -> None:
    sys.exit(f"{reason}: {message}")


def _finished(check: Callable[..., Coroutine[Any, Any, str]], *arguments: Any) -> str:
    return asyncio.run(check(*arguments))


def _bind(check: Callable[..., str], *arguments: Any) -> Callable[[], str]:
    return lambda: check(*arguments)


if __name__ == "__main__":
    sys.exit(main())
