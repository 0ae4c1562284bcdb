"""Measures our server, and any peer that is given, by the workloads of loadgen.py in one run.

    python benchmarks/bench.py [--only single,decode8] [--rounds 3] [--peer vllm=http://127.0.0.1:8101]

Rounds alternate between the servers, each with a new seed, so that a busy moment of the machine
hits all of them. The table gives medians; compare columns of one run, never numbers of two days.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
MODEL = Path(os.environ.get("SKIRRET_CACHE", HERE.parent / ".cache")) / "models/smollm2"
WORKLOADS = ("single", "decode8", "decode32", "shared", "multiturn", "prefill")
MEASURES = {"prefill": "in_tok_s"}  # out_tok_s for the others

Serving = tuple[str, subprocess.Popen[bytes]]  # URL, process
Figures = dict[str, dict[str, list[dict[str, float]]]]  # server, workload, rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--flags", default="", help="more flags for our server")
    given = parser.parse_args()
    workloads = given.only.split(",")
    peers = dict(peer.split("=", 1) for peer in given.peer)
    figures: Figures = defaultdict(lambda: defaultdict(list))
    with ours(given.flags.split()) as (url, start):
        servers = {"skirret": url, **peers}
        for name, server in servers.items():
            load(server, "warm", seed=0)
            print(f"{name}: warm", file=sys.stderr)
        for seed in range(given.rounds):
            for workload in workloads:
                for name, server in servers.items():
                    figure = load(server, workload, seed)
                    figures[name][workload].append(figure)
                    print(f"{name} {workload} {json.dumps(figure)}", file=sys.stderr)
        rss = resident(start.pid)
    print(table(figures, workloads))
    print(f"\nskirret: resident {rss} MiB; {machine()}; load {os.getloadavg()[0]:.1f}")


def ours(flags: list[str]) -> contextlib.AbstractContextManager[Serving]:
    return serving("skirret_server", [str(MODEL), *flags])


@contextlib.contextmanager
def serving(module: str, arguments: list[str]) -> Iterator[Serving]:
    """`python -m MODULE serve ARGUMENTS` on a free port, once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.monotonic()
    always = ["--port", str(port), "--served-model-name", "smollm2", "--files", "off"]
    command = [sys.executable, "-m", module, "serve", *arguments, *always]
    process = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}"
        while not answers(url + "/ready"):
            if process.poll() is not None:
                sys.exit(f"the server ended with {process.returncode}")
            time.sleep(0.05)
        print(f"skirret: ready after {time.monotonic() - began:.1f} s", file=sys.stderr)
        yield url, process
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def load(url: str, workload: str, seed: int) -> dict[str, float]:
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "loadgen.py"),
            "--url",
            url,
            "--model",
            "smollm2",
            "--only",
            workload,
            "--seed",
            str(seed),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    figure: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figure


def table(figures: Figures, workloads: list[str]) -> str:
    names = list(figures)
    lines = [
        "| workload | measure | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    for workload in workloads:
        for measure in (
            MEASURES.get(workload, "out_tok_s"),
            "ttft_p50_ms",
            "itl_p50_ms",
            "itl_p99_ms",
        ):
            cells = [
                f"{statistics.median(round_[measure] for round_ in figures[name][workload]):.1f}"
                for name in names
            ]
            lines.append(f"| {workload} | {measure} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(x for x in status.splitlines() if x.startswith("VmRSS")).split()[1]) // 1024


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def machine() -> str:
    cpu = next(
        x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")
    )
    return (
        f"{cpu.split(':')[1].strip()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
