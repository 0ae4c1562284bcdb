"""What the chart renders, word for word; `UPDATE_GOLDEN=1 pytest tests/chart` accepts a change."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"

# Which templates a case is about; nothing: all of them.
CASES: dict[str, tuple[str, ...]] = {
    "minimal": (),
    "local": ("operator-config", "gateway-deployment"),
    "teams": ("tenants", "rbac", "gateway-deployment"),
    "openshift": ("operator-config", "operator-deployment"),
    "mirror": ("crds", "operator-deployment"),
    "ingress": ("ingress", "httproute", "inferencepools", "gateway-service", "gateway-pdb"),
    "network": ("networkpolicies",),
}


@pytest.mark.parametrize("case", CASES)
def test_the_chart_renders_what_was_agreed(
    case: str, template: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    done = template(case, *(f"--show-only=templates/{name}.yaml" for name in CASES[case]))
    assert done.returncode == 0, done.stderr
    golden = GOLDEN / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(done.stdout)
    assert done.stdout == golden.read_text(), f"see {golden}; if it is meant, UPDATE_GOLDEN=1"


def test_every_case_has_its_golden_file() -> None:
    assert {path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml")} == set(
        CASES
    )


@pytest.mark.parametrize("case", CASES)
def test_helm_lint_finds_nothing(
    case: str, helm: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    done = helm("lint", "{chart}", "--strict", f"--values={GOLDEN / f'{case}.values.yaml'}")
    assert done.returncode == 0, done.stdout + done.stderr
