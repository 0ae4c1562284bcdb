"""Small models and engines for the engine's tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import torch

from skirret_api.launch import ServerSettings
from skirret_server import engine as engines
from skirret_server.engine.engine import SteppingEngine
from skirret_server.load.progress import Progress
from skirret_server.testing import tiny_model

Open = Callable[..., SteppingEngine]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny matrices gain nothing from a second core, and lose much where it is busy."""
    os.environ["OMP_NUM_THREADS"] = "1"  # or engine.open would take all cores
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def workspace() -> Iterator[torch.Tensor]:
    """FlashInfer's, the same for every attention: zeros of this size take as long as a test."""
    made, zeros = torch.zeros(128 << 20, dtype=torch.uint8), torch.zeros
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "skirret_server.attention.flashinfer.torch.zeros",
            lambda *shape, **more: made if shape == (made.numel(),) else zeros(*shape, **more),
        )
        yield made


@pytest.fixture
def copy_of_tiny(tmp_path: Path) -> Callable[..., Path]:
    def copy(**options: int) -> Path:
        return tiny_model(tmp_path / "model", **options)

    return copy


def unexpected(reason: str, message: str) -> None:
    raise AssertionError(f"{reason}: {message}")


@pytest.fixture
async def open_engine(tiny: Path) -> AsyncIterator[Open]:
    opened: list[SteppingEngine] = []

    def open_(**options: object) -> SteppingEngine:
        settings = ServerSettings.model_validate(
            {"max_total_tokens": 2048, "dtype": "float32", **options}
        )
        opened.append(engines.open(settings, tiny, Progress(), unexpected))
        return opened[-1]

    yield open_
    for each in opened:
        await each.close()
