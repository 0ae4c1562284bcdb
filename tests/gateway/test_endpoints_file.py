from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from skirret_gateway.endpoints_file import BadFile, read
from skirret_gateway.table import ModelId, Replica
from skirret_gateway.testing.running import Running, Start


def replicas(path: Path, text: str) -> tuple[Replica, ...]:
    path.write_text(text)
    (route,) = read(path, "LeastLoaded").routes.values()
    return route.replicas


@pytest.mark.parametrize(
    ("url", "replica"),
    [
        ("http://one:8000", Replica("one", 8000)),
        ("http://one:8000/v1/", Replica("one", 8000)),
        ("http://one", Replica("one", 80)),
        ("https://one/openai/v1", Replica("one", 443, tls=True, path="/openai")),
        ("http://[fd00::1]:8000", Replica("fd00::1", 8000)),
    ],
)
def test_a_base_url_is_a_server(tmp_path: Path, url: str, replica: Replica) -> None:
    assert replicas(tmp_path / "e.yaml", f'm: ["{url}"]') == (replica,)


def test_json_is_read_as_well(tmp_path: Path) -> None:
    assert replicas(tmp_path / "e.json", '{"m": ["http://one:1"]}') == (Replica("one", 1),)


def test_a_model_may_have_no_server_yet(tmp_path: Path) -> None:
    assert replicas(tmp_path / "e.yaml", "m: []") == ()


def test_the_strategy_of_the_command_line_is_every_models(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("m: []")
    assert read(path, "RoundRobin").routes[ModelId("", "m")].model.strategy == "RoundRobin"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "m: http://one",
        "m: [one:8000]",
        "m: [ftp://one]",
        "m: [7]",
        "m: ['http://:1']",
        "{",
    ],
)
def test_nonsense_is_refused_with_the_name_of_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(text)
    with pytest.raises(BadFile, match=r"e\.yaml"):
        read(path, "LeastLoaded")


async def listed(gateway: Running, *names: str) -> None:
    """As soon as these are the models."""
    async with asyncio.timeout(5):
        while True:
            models = (await gateway.ask("GET", "/v1/models")).json()["data"]
            if [model["id"] for model in models] == list(names):
                return
            await asyncio.sleep(0.05)


async def test_the_file_is_read_again_when_it_changes(start: Start) -> None:
    gateway = await start({"old": []})
    await listed(gateway, "old")
    gateway.endpoints.write_text('{"new": []}')
    await listed(gateway, "new")


async def test_what_was_known_stays_in_force_while_the_file_is_bad(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start({"old": []})
    gateway.endpoints.write_text("[")
    async with asyncio.timeout(5):
        while "stay as they were" not in caplog.text:
            await asyncio.sleep(0.05)
    assert caplog.records[-1].levelno == logging.ERROR
    await listed(gateway, "old")
