"""Helm, and the chart rendered with the values of one golden case."""

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def helm() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs helm with these arguments; the chart's folder is `{chart}`."""
    built = Path(os.environ.get("SKIRRET_CACHE", ROOT / ".cache")) / "local/programs"
    program = os.environ.get("HELM") or shutil.which(
        "helm", path=f"{built}{os.pathsep}{os.environ['PATH']}"
    )
    if program is None:
        pytest.fail("helm is missing: run `make setup`, or say where it is with HELM=")

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [program, *(x.format(chart=ROOT / "charts/skirret") for x in arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def template(
    helm: Callable[..., "subprocess.CompletedProcess[str]"],
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """`helm template` of one golden case's values and further arguments."""

    @functools.cache
    def run(case: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return helm(
            "template", "skirret", "{chart}", "--namespace=skirret", "--kube-version=1.35.0",
            *(["--values={chart}/values-local.yaml"] if case == "local" else []),
            f"--values={GOLDEN / case}.values.yaml", *arguments,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def render(
    template: Callable[..., "subprocess.CompletedProcess[str]"],
) -> Callable[..., list[dict[str, Any]]]:
    """The objects of one golden case, with these `--set` on top."""

    def run(case: str, *sets: str) -> list[dict[str, Any]]:
        done = template(case, *(f"--set={x}" for x in sets))
        assert done.returncode == 0, done.stderr
        return [x for x in yaml.safe_load_all(done.stdout) if x]

    return run


@pytest.fixture(scope="session")
def refusal(
    template: Callable[..., "subprocess.CompletedProcess[str]"],
) -> Callable[..., str]:
    """What helm says when it refuses one golden case with these `--set` on top."""

    def run(case: str, *sets: str) -> str:
        done = template(case, *(f"--set={x}" for x in sets))
        assert done.returncode != 0, "helm took these values"
        return done.stderr

    return run
