"""Runs the test suites one after another, each against its budget of time.

A suite prints how long it took and fails past 1.5 times its budget, so that slowness is found by
the change that brings it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skirret_local.progress import say

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    budget: float  # seconds on two cores
    commands: Sequence[Sequence[str]]


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "--durations=5", *arguments]


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "lint",
            180,
            [["make", "-s", "lint"], ["make", "-s", "types"], ["make", "-s", "check-generated"]],
        ),
        Suite(
            "unit",
            270,
            [
                # One process per core, so one thread in each.
                ["env", "OMP_NUM_THREADS=1"]
                + pytest("tests", *(f"--ignore=tests/{x}" for x in ("contract", "batch", "seeds")))
                + ["-m", "not full", "--numprocesses=2", "--dist=loadfile"]
            ],
        ),
        Suite("contract", 420, [pytest("tests/contract", "tests/seeds", "-m", "not full")]),
        Suite("batch", 300, [pytest("tests/batch", "-m", "not full")]),
        Suite("e2e", 600, [pytest("e2e/tests", "-m", "not full")]),
        Suite(
            "e2e-full",
            3600,
            [
                pytest("e2e/tests"),
                pytest("tests/batch", "-m", "full", "-s"),
                pytest("tests/gateway/test_proxy.py"),  # in full by SKIRRET_FULL
                pytest("tests/contract", "-m", "full"),
                pytest("tests/server/grammar", "-m", "full", "-s"),
            ],
        ),
    )
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m skirret_local.suites", description=__doc__)
    parser.add_argument("suites", nargs="+", choices=sorted(SUITES))
    failed = [name for name in parser.parse_args(arguments).suites if not run(SUITES[name])]
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def run(suite: Suite) -> bool:
    say(f"suite {suite.name}: budget {suite.budget:.0f} s")
    started = time.monotonic()
    codes = [subprocess.run(command, cwd=ROOT).returncode for command in suite.commands]
    passed = not any(codes)
    took = time.monotonic() - started
    if took > 1.5 * suite.budget:
        say(f"suite {suite.name}: took {took:.0f} s, over 1.5 times its {suite.budget:.0f} s")
        return False
    say(f"suite {suite.name}: {'passed' if passed else 'FAILED'} in {took:.0f} s")
    return passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
