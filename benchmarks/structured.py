"""Measures structured decoding on the bundled model: compiling, masks, throughput, steps saved.

    python benchmarks/structured.py [--rows 32]

Every figure stands beside its plain twin of the same run. CPU seconds, where other work would
spoil a clock.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from skirret_api.launch import ServerSettings
from skirret_server import engine as engines
from skirret_server.core import GenerateRequest, Sampling, TokenId
from skirret_server.engine.stepper import Stepper
from skirret_server.grammar.automaton import START
from skirret_server.grammar.compiler import GrammarCompiler
from skirret_server.grammar.likely import NONE
from skirret_server.grammar.masks import CompiledGrammar, MaskCache
from skirret_server.grammar.spec import Spec
from skirret_server.load.progress import Progress
from skirret_server.sampling.sampler import sample
from skirret_server.scheduler.sequence import Sequence
from skirret_server.serve import vocabulary
from skirret_server.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
MODEL = Path(os.environ.get("SKIRRET_CACHE", HERE.parent / ".cache")) / "models/smollm2"
TEXTS = ("first_name", "last_name", "email_address", "city", "country", "occupation")
FLAT = {
    "type": "object",
    "properties": {
        **{name: {"type": "string", "maxLength": 30} for name in TEXTS},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "is_active": {"type": "boolean"},
    },
    "required": [*TEXTS, "age", "is_active"],
}
TEN = {
    "type": "object",
    "properties": {
        **FLAT["properties"],  # type: ignore[dict-item]
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 5},
    },
    "required": ["first_name", "tags"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    rows = parser.parse_args().rows
    tokenizer = Tokenizer.load(MODEL)
    settings = ServerSettings(max_running_requests=64)
    engine = engines.open(settings, MODEL, Progress())
    info, stepper = engine.info, engine._stepper
    asyncio.run(engine.close())  # the steps are taken here
    words = vocabulary(tokenizer, info)
    asyncio.run(compiling(GrammarCompiler(lambda: words)))
    masking(MaskCache(words), rows, info.vocab_size)

    many = {"type": "array", "items": FLAT, "minItems": 5}
    grammar = asyncio.run(compiled(GrammarCompiler(lambda: words), many))
    prompt = tokenizer.encode("Write the people of a village as JSON.\n")
    list(decoded(stepper, prompt, None, rows))
    ratios = [
        rate(stepper, prompt, grammar, rows) / rate(stepper, prompt, None, rows) for _ in range(3)
    ]
    print(f"decode{rows}, structured by unconstrained: {statistics.median(ratios):.2f}")

    grammar = asyncio.run(compiled(GrammarCompiler(lambda: words), FLAT))
    never = np.full_like(grammar.likely, NONE)
    plain = CompiledGrammar(grammar.automaton, never, grammar.masks)
    for temperature in (0.0, 1.0):
        answers, steps, seconds = zip(
            *(alone(stepper, prompt, each, temperature) for each in (plain, grammar)), strict=True
        )
        print(
            f"eight fields at temperature {temperature}: {steps[0]} steps, {steps[1]} with guesses "
            f"({1 - steps[1] / steps[0]:.0%} saved, {seconds[0] / seconds[1]:.1f} times as fast), "
            f"{'the same' if answers[0] == answers[1] else 'another'} text"
        )


async def compiling(compiler: GrammarCompiler) -> None:
    await compiler.warm()
    times = []
    for schema in (TEN, TEN, {"title": "another", **TEN}):
        began = time.perf_counter()
        await compiler.compile(Spec.of("json_schema", schema))
        times.append(1000 * (time.perf_counter() - began))
    await compiler.close()
    print("compiling ten fields: {:.0f} ms, cached {:.3f} ms, again {:.0f} ms".format(*times))


async def compiled(compiler: GrammarCompiler, schema: object) -> CompiledGrammar:
    ready = await compiler.compile(Spec.of("json_schema", schema))
    await compiler.close()
    return ready.grammar


def masking(masks: MaskCache, rows: int, size: int) -> None:
    """The CPU time that masks add to sampling, in a string and in a key."""
    torch.set_num_threads(1)
    logits = torch.randn(rows, size)
    grammar = asyncio.run(compiled(GrammarCompiler(lambda: masks.vocabulary), FLAT))

    def spent(text: bytes | None) -> float:
        sequences = []
        for row in range(rows):
            walked = None
            if text is not None:
                state = grammar.automaton.step(START, text)
                walked = type(grammar.start())(grammar, state)
            request = GenerateRequest("", [1], Sampling(9, temperature=0.0), grammar=walked)
            sequences.append(Sequence(request, row, 0.0, row))
        times = []
        for _ in range(60):
            fresh = logits.clone()
            began = time.thread_time()
            sample(fresh, sequences, frozenset())
            times.append(time.thread_time() - began)
        return 1e6 * statistics.median(times) / rows

    none = spent(None)
    for where, text in (("string", b'{"first_name": "'), ("key", b'{"first_')):
        print(f"masks in a {where}: {spent(text) - none:.0f} us a row and step, at {rows} rows")
    torch.set_num_threads(engines.machine.cores())


def rate(
    stepper: Stepper[int], prompt: list[TokenId], grammar: CompiledGrammar | None, rows: int
) -> float:
    began = time.perf_counter()
    return sum(map(len, decoded(stepper, prompt, grammar, rows))) / (time.perf_counter() - began)


def alone(
    stepper: Stepper[int], prompt: list[TokenId], grammar: CompiledGrammar, temperature: float
) -> tuple[list[TokenId], int, float]:
    began, steps = time.perf_counter(), stepper.stats().steps
    updates = decoded(stepper, prompt, grammar, 1, most=250, temperature=temperature)
    answer = [token for update in updates for token in update]
    return answer, stepper.stats().steps - steps, time.perf_counter() - began


def decoded(
    stepper: Stepper[int], prompt: list[TokenId], grammar: CompiledGrammar | None, rows: int,
    most: int = 64, temperature: float = 1.0,
) -> Iterator[tuple[TokenId, ...]]:  # fmt: skip
    for row in range(rows):
        sampling = Sampling(most, temperature=temperature, seed=row, ignore_eos=grammar is None)
        start = grammar.start() if grammar else None
        stepper.add(GenerateRequest("", prompt, sampling, grammar=start), row)
    while not stepper.is_idle:
        for _, update in stepper.step():
            yield update.tokens


if __name__ == "__main__":
    main()
