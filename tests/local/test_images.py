"""The Dockerfiles, and what the local image is made of."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from skirret_local import images
from skirret_local.buildah import DOCKER

PROJECT = """
[project]
dependencies = ["pydantic>=2"]
[project.optional-dependencies]
gateway = ["aiohttp>=3"]
server = ["torch>=2"]
[build-system]
requires = ["hatchling"]
"""
PRODUCT = ("skirret.Dockerfile", "server.Dockerfile", "server-cuda.Dockerfile")


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    text = (DOCKER / dockerfile).read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def test_the_image_takes_what_its_processes_import_and_no_more() -> None:
    assert images.requirements(PROJECT, ["gateway"]) == ["hatchling", "pydantic>=2", "aiohttp>=3"]


@pytest.mark.parametrize("dockerfile", sorted(path.name for path in DOCKER.glob("*.Dockerfile")))
def test_a_dockerfile_has_only_instructions_that_exist(dockerfile: str) -> None:
    known = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "WORKDIR"}
    assert {word for word, _ in instructions(dockerfile)} <= known


@pytest.mark.parametrize("dockerfile", PRODUCT)
def test_the_images_process_is_no_root_by_number(dockerfile: str) -> None:
    stages = " ".join(f"{word} {rest}" for word, rest in instructions(dockerfile)).split("FROM ")
    assert "USER 65532:65532" in stages[1]
    assert stages[-1].startswith("runtime")
    assert "USER" not in stages[-1]


@pytest.mark.parametrize("dockerfile", PRODUCT)
def test_only_what_the_wheel_is_made_of_goes_into_an_image(dockerfile: str) -> None:
    kept = Path(DOCKER / f"{dockerfile}.dockerignore").read_text().splitlines()
    packages = {Path(path).parts[0] for path in images.SOURCES}
    assert {line[1:] for line in kept if line.startswith("!")} == {
        *packages,
        *("pyproject.toml", "README.md", "LICENSE"),
    }


def test_the_torch_free_image_installs_no_torch() -> None:
    assert "torch" not in "".join(rest for _, rest in instructions("skirret.Dockerfile"))


def test_the_gpu_image_compiles_with_the_cuda_of_its_torch() -> None:
    """Of the newest torch, which is what it installs and what the tests run on."""
    required = next(x for x in metadata.requires("torch") or [] if x.startswith("cuda-toolkit"))
    (toolkit,) = re.findall(r"==(\d+\.\d+)", required)
    (base,) = (rest for word, rest in instructions("server-cuda.Dockerfile") if "BASE=" in rest)
    assert f"nvidia/cuda:{toolkit}." in base
    assert "-devel-" in base
