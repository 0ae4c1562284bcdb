"""What the API itself costs, three times as much as `benchmarks/surface.py` must show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "surface.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("surface", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROUNDS = 3
    return module


def test_two_kilobytes_are_parsed_and_validated_in_a_millisecond(bench: Any) -> None:
    assert bench.validation_seconds(bench.request_of_2kb(), count=30) < 3 * 0.3e-3


async def test_a_streamed_token_costs_microseconds(bench: Any) -> None:
    assert await bench.token_seconds(500) < 3 * 25e-6
