"""Micro-benchmarks of what every step pays on the host, each the median of many runs.

    python benchmarks/micro.py

Times are of the processor, not of the clock: a busy machine disturbs them less.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable

import torch

from skirret_server.cache.prefix import PrefixCache
from skirret_server.cache.radix import RadixTree
from skirret_server.core import GenerateRequest, ModelInfo, Sampling
from skirret_server.engine.runner import arrays
from skirret_server.engine.stepper import Stepper
from skirret_server.sampling.sampler import sample
from skirret_server.scheduler.scheduler import Limits, Scheduler
from skirret_server.scheduler.sequence import Outcome, Step
from skirret_server.testing.null import NullRunner

PAGE = 16
NODES = 100_000
RUNNING = 256
SMALL_VOCABULARY = 64  # so that the sampler's glue is measured and not its arithmetic


def main() -> None:
    torch.set_num_threads(1)
    print("| what | ms |\n|---|---|")
    for measured in (steps, tree):
        for name, milliseconds in measured():
            print(f"| {name} | {milliseconds:.3f} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f}", file=sys.stderr)


def tree() -> list[tuple[str, float]]:
    long = row(8192, random.Random(1))
    full = grown(NODES)
    full.insert(long, list(range(len(long) // PAGE)))
    prompts = iter([row(1024, random.Random(seed)) for seed in range(2, 260)])
    return [
        ("match of 8,192 tokens", median(lambda: full.match(long, len(long)), 200)),
        ("look-up of 8,192 tokens", median(lambda: full.longest(long, len(long)), 200)),
        (
            "insert of 1,024 new tokens",
            median(lambda: full.insert(next(prompts), list(range(64))), 200),
        ),
        (f"evict of 64 pages from {NODES:,} nodes", median(lambda: full.evict(64), 200)),
        (f"evict of 4,096 pages from {NODES:,} nodes", median(lambda: full.evict(4096), 10)),
    ]


def grown(nodes: int) -> RadixTree:
    """Prompts that share beginnings, until there are so many nodes."""
    dice = random.Random(0)
    made = RadixTree(PAGE)
    prefixes = [row(512, dice) for _ in range(100)]
    count = 0
    while count < nodes:
        prompt = dice.choice(prefixes)[: PAGE * dice.randrange(32)] + row(64, dice)
        made.insert(prompt, list(range(len(prompt) // PAGE)))
        count += 2  # a leaf, and mostly a cut
    return made


def steps() -> list[tuple[str, float]]:
    stepper, kept = decoding(RUNNING)
    whole = median(stepper.step, 60)
    rows = kept.step.rows
    logits = torch.randn(RUNNING, SMALL_VOCABULARY)
    sequences = [each.sequence for each in rows]
    laid = median(lambda: arrays(rows, PAGE), 60)
    drawn = median(lambda: sample(logits, sequences, frozenset({0})), 60)
    return [
        (f"scheduling step at {RUNNING} running: plan, advance, updates", whole),
        (f"arrays of a step at {RUNNING} running", laid),
        (f"glue of the sampler at {RUNNING} running, greedy", drawn),
    ]


class _Keeping(NullRunner):
    def run(self, step: Step) -> list[Outcome]:
        self.step = step
        return super().run(step)


def decoding(running: int) -> tuple[Stepper[int], _Keeping]:
    limits = Limits(step_tokens=running * 600, running=running, queued=running)
    cache = PrefixCache(running * 80, PAGE)
    runner = _Keeping([1, 2, 3], seconds=0)
    stepper: Stepper[int] = Stepper(
        Scheduler(cache, limits), runner, ModelInfo(300, 4096, frozenset({0}), 1 << 20), time.time
    )
    dice = random.Random(3)
    for reader in range(running):
        sampling = Sampling(max_tokens=400, temperature=0.0)
        stepper.add(GenerateRequest(str(reader), row(500, dice), sampling), reader)
    stepper.step()
    return stepper, runner


def row(length: int, dice: random.Random) -> array[int]:
    return array("i", (dice.randrange(300) for _ in range(length)))


def median(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.thread_time()
        call()
        taken.append(time.thread_time() - began)
    return statistics.median(taken) * 1e3


if __name__ == "__main__":
    main()
