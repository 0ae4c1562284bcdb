"""The script for whoever has a GPU, on the stand-ins: the same checks, of a tiny model."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks/gpu_check.sh"


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT.with_suffix(".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("workspace")
def test_every_check_passes_where_the_gpu_is_the_cpu(
    gpu_check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "found.json"
    assert gpu_check.main(["--device", "cpu", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert len(found["checks"]) == 44
    assert [row["running"] for row in found["throughput"]] == [1, 3]
    assert "| running | tokens/s | ms a step |" in capsys.readouterr().out


def test_a_check_that_fails_or_has_no_time_left_fails_the_script(gpu_check: ModuleType) -> None:
    def wrong() -> str:
        raise AssertionError("differs by 2")

    report = gpu_check.Report()
    report.run("right", lambda: "equal")
    assert report.passed
    report.run("wrong", wrong)
    late = gpu_check.Report(report.started - gpu_check.BUDGET - 1)
    late.run("late", lambda: "equal")
    assert not report.passed
    assert not late.passed
    assert [each["seen"] for each in report.checks + late.checks] == [
        "equal",
        "differs by 2",
        "no time left",
    ]


def test_the_shell_can_read_it() -> None:
    assert subprocess.run(["bash", "-n", SCRIPT]).returncode == 0
    assert SCRIPT.stat().st_mode & 0o111
