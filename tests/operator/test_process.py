"""The operator as a process of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from skirret_operator.__main__ import main
from skirret_operator.kinds import DEFINITION, LEASE, MODEL
from skirret_operator.testing.api_server import ApiServer
from skirret_operator.testing.objects import NAMESPACE, config, model

Eventually = Callable[..., Any]
MEMORY_LIMIT = 128 << 20  # bytes


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Arguments that name a configuration and a tenant."""
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(config().model_dump(mode="json", by_alias=True, exclude_unset=True))
    )
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    settings = {"kind": "folder", "path": str(tmp_path / "store")}
    (tenants / f"{NAMESPACE}.store.json").write_text(json.dumps(settings))
    (tenants / f"{NAMESPACE}.token").write_text("internal-token")
    return [f"--config={tmp_path / 'config.yaml'}", f"--tenants={tenants}"]


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    """What a process logs, run in this one; logging is as before afterwards."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    # So that the process does not find them, and close them, when it sets up its own.
    root.handlers[:] = []
    yield capsys
    root.handlers[:] = before
    root.setLevel(level)


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "skirret_operator", *arguments, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_process_serves_its_door_and_ends_well(
    api: ApiServer, files: list[str], eventually: Eventually
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    api.put(model())
    async with started("run", *files, f"--port={port}") as process:
        await eventually(lambda: (api.get(MODEL, NAMESPACE, "smollm2") or {}).get("status"), 30)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            async with session.get("/healthz") as response:
                assert response.status == 200
            async with session.get("/metrics") as response:
                text = await response.text()
        assert 'skirret_operator_writes_total{kind="Deployment",verb="patch"} 1.0' in text
        memory = Path(f"/proc/{process.pid}/statm").read_text().split()[1]
        assert int(memory) * 4096 < MEMORY_LIMIT

        process.send_signal(signal.SIGTERM)
        _, logged = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 0
    lease = api.get(LEASE, "skirret-system", "skirret-operator") or {}
    assert lease["spec"]["holderIdentity"] == ""
    lines = [json.loads(line) for line in logged.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert "internal-token" not in logged.decode()


async def test_the_hook_applies_the_definitions(api: ApiServer, eventually: Eventually) -> None:
    async with started("crds") as process:
        for name in ("inferencemodels.skirret.dev", "batchjobs.skirret.dev"):
            await eventually(lambda name=name: api.get(DEFINITION, "", name), 30)
            api.edit(
                DEFINITION,
                "",
                name,
                lambda body: body.update(
                    status={"conditions": [{"type": "Established", "status": "True"}]}
                ),
            )
        await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 0


def test_a_wrong_configuration_is_told_without_its_secrets(
    files: list[str], tmp_path: Path, stderr: pytest.CaptureFixture[str]
) -> None:
    wrong = {"kind": "s3", "endpoint": 1, "secretKey": ["hunter2"]}
    (tmp_path / "tenants" / f"{NAMESPACE}.store.json").write_text(json.dumps(wrong))
    assert main(["run", *files]) == 2
    told = stderr.readouterr().err
    assert "secretKey" in told
    assert "hunter2" not in told


def test_a_missing_configuration_is_told(
    tmp_path: Path, stderr: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"--config={tmp_path / 'none.yaml'}"]) == 2
    assert "none.yaml" in stderr.readouterr().err
