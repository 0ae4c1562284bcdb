"""One installation for all end-to-end tests, and the figures they print at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from skirret_local import local
from skirret_local.installation import Site, until
from skirret_local.manifests import inference_model

MODEL = "smollm2"
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Skirret as its users install it, on the local Kubernetes with two pretend GPUs."""
    site = local.site("skirret-e2e", Path(__file__).with_name("values.yaml"), gpus=2)
    site.install()
    site.kubectl("delete", "inferencemodels,batchjobs", "--all", "--wait=true")
    yield site
    site.kubectl("delete", "inferencemodels,batchjobs", "--all", "--wait=false")


@pytest.fixture(scope="session")
def model(site: Site) -> str:
    """A model that serves, shared by the tests that don't harm it."""
    site.apply(inference_model(MODEL))
    wait_ready(site, MODEL)
    return MODEL


@pytest.fixture
def client(site: Site) -> Iterator[OpenAI]:
    """The official client, which shows every failure: it retries nothing."""
    with site.client(max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def ready(site: Site) -> Callable[[str], None]:
    return lambda name: wait_ready(site, name)


def wait_ready(site: Site, name: str) -> None:
    def look() -> bool:
        return site.condition("inferencemodel", name, "Ready").get("status") == "True"

    until(f"model {name} is ready", look, within=90)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, float, float, str], None]:
    """Notes a figure for the end of the run, and fails when it is over its limit."""

    def note(name: str, seen: float, at_most: float, unit: str) -> None:
        figures = request.config.stash.setdefault(_FIGURES, [])
        figures.append(f"{name}: {seen:.1f} {unit} (at most {at_most:g})")
        assert seen <= at_most, f"{name}: {seen:.1f} {unit}, over {at_most:g}"

    return note


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    figures = config.stash.get(_FIGURES, [])
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
