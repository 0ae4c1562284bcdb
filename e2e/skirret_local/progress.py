"""Runs long commands with a line that says what, how far and how long. Standard library only."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn


class StepFailed(Exception):
    """A step's command failed; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    command: Sequence[str]
    expected: float  # seconds on two cores, from nothing
    cwd: Path | None = None
    env: Mapping[str, str] | None = None


def run(steps: Sequence[Step], logs: Path, every: float = 10.0) -> None:
    """Runs the steps side by side, their output in `logs`; raises StepFailed on the first failure.

    The other steps are ended then, and on Ctrl-C, so that nothing goes on in the background.
    """
    logs.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    running: dict[str, tuple[Step, subprocess.Popen[bytes], Path]] = {}
    try:
        for step in steps:
            log = logs / f"{step.name.replace(' ', '-')}.log"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    step.command,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    cwd=step.cwd,
                    env=step.env,
                )
            running[step.name] = (step, process, log)
            say(f"{step.name}: started, about {_minutes(step.expected)}")
        _watch(running, started, every)
    finally:
        for _, process, _ in running.values():
            if process.poll() is None:
                process.terminate()
                process.wait()


def _watch(
    running: dict[str, tuple[Step, subprocess.Popen[bytes], Path]], started: float, every: float
) -> None:
    told = time.monotonic()
    while running:
        time.sleep(0.2)
        now = time.monotonic()
        for name, (step, process, log) in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[name]
            if code:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
                raise StepFailed(f"{name} failed (exit {code}); the end of {log}:\n{tail}")
            say(f"{step.name}: done in {_minutes(now - started)}")
        if now - told >= every:
            told = now
            for step, _, log in running.values():
                say(
                    f"{step.name}: {_minutes(now - started)} of about {_minutes(step.expected)}"
                    f" · {_last_line(log)}"
                )


def say(line: str) -> None:
    print(f"[skirret] {line}", flush=True)


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400))
        lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    return next((x.strip()[:90] for x in reversed(lines) if x.strip()), "working")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def fail(message: str) -> NoReturn:
    """Says why and how to go on, and exits."""
    sys.exit(f"[skirret] {message}")
