"""Two real servers behind the gateway: prefix-aware routing beside round-robin, in one run.

    python benchmarks/replicas.py [--rounds 2] [--strategies RoundRobin,PrefixTree]

Each server has one core and a cache that holds half of the prefixes in use. Rounds alternate
between the strategies, each with empty caches. The table gives medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
from gateway import free_port

MODEL = Path(os.environ.get("SKIRRET_CACHE", Path(__file__).parents[1] / ".cache"))
WORDS = [
    "root",
    "leaf",
    "stem",
    "seed",
    "soil",
    "rain",
    "sun",
    "wind",
    "frost",
    "bloom",
    "graft",
    "shoot",
    "bulb",
    "moss",
    "fern",
    "vine",
]
GROUPS, PREFIX_WORDS, CACHE_TOKENS = 10, 400, 2560
CLIENTS, ANSWER = 8, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--strategies", default="RoundRobin,PrefixHash,PrefixTree")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started
    strategies = given.strategies.split(",")
    figures: dict[str, list[Round]] = {name: [] for name in strategies}
    with contextlib.ExitStack() as stack:
        servers = dict(stack.enter_context(server(core)) for core in (0, 1))
        doors = {name: stack.enter_context(gateway(name, [*servers])) for name in strategies}
        for port in (*servers, *doors.values()):
            asyncio.run(ready(port))
        for number in range(given.rounds):
            for name, port in doors.items():
                before = sum(map(cpu_seconds, servers.values()))
                rate, hits = asyncio.run(measure([*servers], port, given.requests, seed=number))
                spent = sum(map(cpu_seconds, servers.values())) - before
                got = Round(rate, hits, spent / given.requests)
                figures[name].append(got)
                print(f"{name}: {got}", file=sys.stderr)
    print("| strategy | requests/s | servers' CPU seconds a request | cached tokens |")
    print("|---|---|---|---|")
    for name, rounds in figures.items():
        rate, hits, cost = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"| {name} | {rate:.2f} | {cost:.2f} | {hits:.0%} |")


class Round(NamedTuple):
    rate: float  # requests a second
    hits: float  # share of the prompts' tokens that were cached
    cost: float  # CPU seconds of both servers a request: what noise leaves alone


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(core: int) -> Iterator[tuple[int, int]]:
    """Its port and process."""
    port = free_port()
    flags = ["serve", str(MODEL / "models/smollm2"), "--port", str(port), "--files", "off"]
    flags += ["--served-model-name", "m", "--max-total-tokens", str(CACHE_TOKENS)]
    command = ["taskset", "-c", str(core), sys.executable, "-m", "skirret_server", *flags]
    with process(command) as pid:
        yield port, pid


@contextlib.contextmanager
def gateway(strategy: str, servers: Sequence[int]) -> Iterator[int]:
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"m": [f"http://127.0.0.1:{each}" for each in servers]}, file)
        file.flush()
        flags = ["--endpoints", file.name, "--port", str(port), "--routing", strategy]
        with process([sys.executable, "-m", "skirret_gateway", *flags, "--access-log", "off"]):
            yield port


@contextlib.contextmanager
def process(command: Sequence[str]) -> Iterator[int]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    started = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)
    try:
        yield started.pid
    finally:
        started.terminate()
        started.wait()


async def ready(port: int) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)


async def measure(
    servers: Sequence[int], port: int, requests: int, seed: int
) -> tuple[float, float]:
    """Requests a second, and the share of the prompts' tokens that were cached."""
    rng = random.Random(seed)
    prefixes = [" ".join(rng.choices(WORDS, k=PREFIX_WORDS)) for _ in range(GROUPS)]
    left = [rng.choice(prefixes) + f"\n\nQuestion {n}: what grows?" for n in range(requests)]
    prompt = cached = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1800)) as session:
        for each in servers:
            async with session.post(f"http://127.0.0.1:{each}/flush_cache") as response:
                response.raise_for_status()

        async def client() -> None:
            nonlocal prompt, cached
            while left:
                body = {"model": "m", "prompt": left.pop(), "max_tokens": ANSWER, "temperature": 0}
                url = f"http://127.0.0.1:{port}/v1/completions"
                async with session.post(url, json=body) as response:
                    answer = await response.json()
                    if response.status != 200:
                        sys.exit(f"{response.status}: {answer}")
                prompt += answer["usage"]["prompt_tokens"]
                cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        began = time.monotonic()
        await asyncio.gather(*[client() for _ in range(CLIENTS)])
        took = time.monotonic() - began
    return requests / took, cached / prompt


if __name__ == "__main__":
    main()
