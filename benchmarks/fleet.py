"""Simulates fleets to compare the gateway's strategies: cache hits, throughput and balance.

    python benchmarks/fleet.py [--replicas 8,16,64] [--write]

The choosers are the gateway's own and each replica has the server's own radix tree; what a replica
takes for a prompt and an answer is a model: prompts are computed one after another, answers are
decoded side by side, more of them more slowly. Clients are as many as the fleet can hold and ask
again as soon as they are answered. `--write` puts table and plot into results/.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from plot import bars

from skirret_api.meta import RoutingStrategy
from skirret_gateway.choice import choose
from skirret_gateway.prefixes import Knowledge
from skirret_gateway.prompt import Block, Prompt
from skirret_gateway.table import Replica
from skirret_server.cache.prefix import PrefixCache

RESULTS = Path(__file__).parent / "results"
PAGE, PAGES = 16, 8192  # tokens; 128k of them in each cache
PREFILL = 8_000  # tokens a second of one replica
STEP, STEP_EACH = 0.010, 0.0005  # seconds a token: alone, and for each other answer
CLIENTS = 12  # a replica
TOKENS_A_BLOCK = 128

Tokens = array  # of int; 4 bytes a token, as text has


@dataclass
class Ask:
    tokens: Tokens[int]
    answer: int  # tokens
    session: bytes = b""
    pause: float = 0.0  # seconds that the client takes to think before


Traffic = Callable[[random.Random, int], Iterator[Iterator[Ask]]]  # conversations, without end


def words(rng: random.Random, length: int) -> Tokens[int]:
    return array("i", rng.randbytes(4 * length))


def about(rng: random.Random, length: int) -> int:
    return rng.randint(length // 2, length * 3 // 2)


def shared(rng: random.Random, replicas: int) -> Iterator[Iterator[Ask]]:
    """Groups that each share a prompt of 2,048 tokens, and ask something of 128."""
    groups = [words(rng, 2048) for _ in range(6 * replicas)]
    while True:
        yield iter([Ask(rng.choice(groups) + words(rng, 128), about(rng, 64))])


def turns(rng: random.Random, replicas: int) -> Iterator[Iterator[Ask]]:
    """Conversations of 6 turns after one prompt of 512 tokens that all have."""
    system = words(rng, 512)
    for number in count():
        yield conversation(rng, system, b"%d" % number)


def conversation(rng: random.Random, system: Tokens[int], session: bytes) -> Iterator[Ask]:
    text = system
    for _ in range(6):
        text = text + words(rng, 100)
        answer = about(rng, 120)
        yield Ask(text, answer, session, pause=rng.expovariate(0.5))
        text = text + words(rng, answer)


def zipf(rng: random.Random, replicas: int) -> Iterator[Iterator[Ask]]:
    """Documents of 4,096 tokens, the n-th asked for 1/n as often as the first."""
    documents = [words(rng, 4096) for _ in range(32 * replicas)]
    weights = [1 / (rank + 1) for rank in range(len(documents))]
    while True:
        (document,) = rng.choices(documents, weights)
        yield iter([Ask(document + words(rng, 64), about(rng, 64))])


def hot(rng: random.Random, replicas: int) -> Iterator[Iterator[Ask]]:
    """Four of five requests share one prompt of 2,048 tokens; the others share none."""
    prefix = words(rng, 2048)
    while True:
        begin = prefix if rng.random() < 0.8 else words(rng, 2048)
        yield iter([Ask(begin + words(rng, 128), about(rng, 64))])


TRAFFIC: dict[str, Traffic] = {
    "shared prefixes": shared,
    "conversations": turns,
    "Zipf documents": zipf,
    "one hot prefix": hot,
}


@dataclass
class Machine:
    """A replica as it works."""

    replica: Replica
    cache: PrefixCache = field(default_factory=lambda: PrefixCache(PAGES, PAGE))
    free_at: float = 0.0  # when it can begin with the next prompt
    decoding: int = 0
    busy: float = 0.0


class Exact(Knowledge):
    """What servers tell, at once and without loss."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        super().__init__()
        self._trees = {machine.replica: machine.cache for machine in machines}
        self.tokens: Tokens[int] = array("i")

    def depth(self, replica: Replica, blocks: Sequence[Block]) -> int:
        if replica not in self.telling:
            return super().depth(replica, blocks)
        known = self._trees[replica].longest(self.tokens, len(self.tokens), "")
        return max(known // TOKENS_A_BLOCK, self.expected.depth(replica, blocks))


@dataclass(frozen=True)
class Figures:
    hits: float  # share of the prompts' tokens
    rate: float  # requests a second of one replica
    first_p50: float  # seconds to the first token
    first_p99: float
    skew: float  # of the busiest replica's work to the average


def simulate(
    strategy: RoutingStrategy,
    traffic: Traffic,
    replicas: int,
    *,
    requests: int,
    sessions: bool = False,
    gateways: int = 1,
    seed: int = 0,
) -> Figures:
    rng = random.Random(seed)
    machines = [Machine(Replica(f"10.0.{n // 256}.{n % 256}", 30000)) for n in range(replicas)]
    by_replica = {machine.replica: machine for machine in machines}
    listed = [machine.replica for machine in machines]
    knowledge = [Exact(machines) for _ in range(gateways)]
    if strategy == "CacheAware":
        for each in knowledge:
            each.telling.update(listed)
    loads: list[Counter[Replica]] = [Counter() for _ in range(gateways)]  # each knows its own
    turn = [0] * gateways
    source = traffic(rng, replicas)
    serial = count()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    cached = asked = done = 0
    firsts: list[float] = []

    def later(at: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (at, next(serial), what))

    def client(now: float, at: int, talk: Iterator[Ask]) -> None:
        ask = next(talk, None)
        if ask is None:
            talk = next(source)
            ask = next(talk)
        if ask.pause:
            later(now + ask.pause, lambda t: begin(t, at, talk, ask))
        else:
            begin(now, at, talk, ask)

    def begin(now: float, at: int, talk: Iterator[Ask], ask: Ask) -> None:
        nonlocal cached, asked
        text = ask.tokens.tobytes()
        prompt = Prompt(text[: 64 * 512], text[:512], ask.session if sessions else b"")
        knowledge[at].tokens = ask.tokens
        chosen = choose(strategy, listed, loads[at], prompt, knowledge[at], turn[at])
        turn[at] += 1
        knowledge[at].sent(chosen, prompt.blocks)
        loads[at][chosen] += 1
        machine = by_replica[chosen]
        started = max(now, machine.free_at)
        machine.free_at = started  # the prompt is matched when its turn comes
        later(started, lambda at_time: prefill(at_time, now, at, talk, ask, machine))

    def prefill(
        now: float, since: float, at: int, talk: Iterator[Ask], ask: Ask, machine: Machine
    ) -> None:
        nonlocal cached, asked
        if machine.free_at > now:  # another one came first
            later(machine.free_at, lambda t: prefill(t, since, at, talk, ask, machine))
            return
        holding = machine.cache.hold(ask.tokens, len(ask.tokens) - 1, "")
        known = holding.shared * PAGE
        if not machine.cache.grow(holding, len(ask.tokens) + ask.answer):
            machine.cache.release(holding)
            later(now + 0.05, lambda t: prefill(t, since, at, talk, ask, machine))
            return
        took = (len(ask.tokens) - known) / PREFILL + STEP
        machine.free_at = now + took
        machine.busy += took
        if done >= requests // 4:  # caches are warm
            cached += known
            asked += len(ask.tokens)
            firsts.append(now + took - since)

        def decoded(end: float) -> None:
            nonlocal done
            machine.decoding -= 1
            whole = ask.tokens + array("i", bytes(4 * ask.answer))
            machine.cache.commit(holding, whole)
            machine.cache.release(holding)
            loads[at][machine.replica] -= 1
            done += 1
            client(end, at, talk)

        def decode(start: float) -> None:
            machine.cache.commit(holding, ask.tokens)
            machine.decoding += 1
            later(start + ask.answer * (STEP + STEP_EACH * machine.decoding), decoded)

        later(now + took, decode)

    crowd = CLIENTS * replicas * (2 if traffic is turns else 1)  # as half of those think
    for number in range(crowd):
        later(rng.random(), lambda t, n=number: client(t, n % gateways, iter(())))
    now = warm = 0.0
    while done < requests:
        now, _, what = heapq.heappop(events)
        what(now)
        if not warm and done >= requests // 4:
            warm = now
    work = [machine.busy for machine in machines]
    firsts.sort()
    return Figures(
        hits=cached / asked,
        rate=(requests - requests // 4) / (now - warm) / replicas,
        first_p50=firsts[len(firsts) // 2],
        first_p99=firsts[len(firsts) * 99 // 100],
        skew=max(work) / statistics.mean(work),
    )


STRATEGIES: dict[str, tuple[RoutingStrategy, bool]] = {
    "RoundRobin": ("RoundRobin", False),
    "LeastLoaded": ("LeastLoaded", False),
    "PrefixHash": ("PrefixHash", False),
    "PrefixHash, sessions": ("PrefixHash", True),
    "PrefixTree": ("PrefixTree", False),
    "CacheAware": ("CacheAware", False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", default="8,16,64")
    parser.add_argument("--requests", type=int, default=100, help="a replica")
    parser.add_argument("--only", default=",".join(TRAFFIC))
    parser.add_argument("--write", action="store_true", help="into results/")
    given = parser.parse_args()
    cases = [(int(number), 1) for number in given.replicas.split(",")]
    cases.append((cases[len(cases) // 2][0], 2))
    lines = [
        "| traffic | replicas | gateways | strategy | cached tokens | requests/s a replica "
        "| first token p50, ms | p99, ms | busiest / average |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    plotted: dict[str, dict[str, float]] = {}
    for name in given.only.split(","):
        for replicas, gateways in cases:
            for label, (strategy, sessions) in STRATEGIES.items():
                if sessions and name != "conversations":
                    continue
                got = simulate(
                    strategy,
                    TRAFFIC[name],
                    replicas,
                    requests=given.requests * replicas,
                    sessions=sessions,
                    gateways=gateways,
                )
                if (replicas, gateways) == cases[-1]:
                    plotted.setdefault(name, {})[label] = got.rate
                lines.append(
                    f"| {name} | {replicas} | {gateways} | {label} | {got.hits:.0%} "
                    f"| {got.rate:.2f} | {got.first_p50 * 1000:.0f} | {got.first_p99 * 1000:.0f} "
                    f"| {got.skew:.2f} |"
                )
                print(lines[-1], flush=True)
    if given.write:
        (RESULTS / "fleet.md").write_text("\n".join([*INTRODUCTION, *lines, ""]))
        title = f"Requests a second of one replica: {cases[-1][0]} replicas, two gateways"
        (RESULTS / "fleet.svg").write_text(bars(title, plotted))


INTRODUCTION = [
    "# Strategies in simulated fleets",
    "",
    "By `make bench-fleet`. Ratios within one kind of traffic count; the model's speeds are",
    "arbitrary. ![Throughput by strategy](fleet.svg)",
    "",
]

if __name__ == "__main__":
    main()
