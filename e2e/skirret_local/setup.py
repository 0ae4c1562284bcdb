"""`make setup`: the virtual environment and everything built, from package registries alone.

Runs under the system's Python with the standard library only, since it makes the environment.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from skirret_local import flashinfer_source
from skirret_local.progress import Step, StepFailed, fail, run, say

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
CACHE = Path(os.environ.get("SKIRRET_CACHE", ROOT / ".cache"))
EXTRAS = "operator,gateway,batch,server,model,local,dev"


def main(arguments: list[str]) -> None:
    """`python -m skirret_local.setup [--no-cluster]`: the second form needs neither root nor Go."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the point is to say so
        fail(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}")
    steps = []
    if importlib.util.find_spec("ensurepip") is None:  # Debian ships it apart
        if os.geteuid() != 0:
            fail("this Python can't make environments: apt-get install python3-venv")
        apt = "apt-get update && apt-get install --yes --no-install-recommends python3-venv"
        _run([Step("python3-venv", ["sh", "-c", apt], expected=20)])
    if not _is_fresh():
        say("python packages: making .venv (torch and its libraries are about 5 GB on disk)")
        steps.append(Step("python packages", _pip(), expected=240, cwd=ROOT))
    if "--no-cluster" not in arguments:
        steps.append(
            Step(
                "cluster programs",
                [sys.executable, "-m", "skirret_local", "prepare"],
                expected=600,
                env={**os.environ, "PYTHONPATH": str(ROOT / "e2e")},
            )
        )
    _run(steps)
    if "--no-cluster" not in arguments and not flashinfer_source.is_there(CACHE):
        _run([_flashinfer()])
    if not _is_fresh():
        _stamp().write_text(_wanted())
    say("set up")


def _run(steps: Sequence[Step]) -> None:
    try:
        run(steps, CACHE / "logs")
    except StepFailed as error:
        fail(str(error))


def _flashinfer() -> Step:
    """For a test; its pip is that of the environment, so it runs when that is made."""
    return Step(
        "FlashInfer's source",
        [str(VENV / "bin/python"), "-m", "skirret_local.flashinfer_source"],
        expected=20,
        env={**os.environ, "PYTHONPATH": str(ROOT / "e2e"), "SKIRRET_CACHE": str(CACHE)},
    )


def _pip() -> list[str]:
    python = str(VENV / "bin/python")
    install = f"{python} -m pip install --disable-pip-version-check --progress-bar off"
    make = f"{sys.executable} -m venv {VENV}"
    return ["sh", "-c", f"{make} && {install} -U pip && {install} -e '.[{EXTRAS}]'"]


def _stamp() -> Path:
    return VENV / "skirret-installed"


def _wanted() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + EXTRAS.encode()).hexdigest()


def _is_fresh() -> bool:
    return _stamp().exists() and _stamp().read_text() == _wanted()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        fail("stopped; run the same command again to go on from here")
