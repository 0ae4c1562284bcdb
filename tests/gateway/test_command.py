"""The command, as a process."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from skirret_gateway.__main__ import main
from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import Client, request
from skirret_gateway.testing.process import running
from skirret_gateway.testing.running import CHAT, chat
from skirret_gateway.testing.scripted import DONE, ScriptedServer, event


async def test_sigterm_lets_a_stream_end_and_exits_cleanly(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.default = scripted.stream(event("a"), event("b"), DONE, pause=0.1)
    endpoints = tmp_path / "servers.yaml"
    endpoints.write_text(f"m: ['{server.url}']")
    async with (
        running("--endpoints", str(endpoints), "--drain-timeout", "5") as (process, port),
        Client(port) as client,
    ):
        await client.send(request("POST", CHAT, chat(stream=True)))
        await client.head()
        process.send_signal(signal.SIGTERM)
        body = b"".join([chunk async for chunk in client.chunks()])
        assert body == event("a") + event("b") + DONE
        async with asyncio.timeout(5):
            assert await process.wait() == 0


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "--endpoints --namespaces"),
        (["--namespaces", ""], "at least one name"),
        (["--namespaces", "a"], "no Kubernetes here"),
        (["--endpoints", "/nowhere/e.yaml"], "/nowhere/e.yaml"),
        (["--endpoints", "x", "--namespaces", "a"], "not allowed with"),
    ],
)
def test_what_can_not_work_is_refused_with_its_reason(
    flags: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code != 0
    assert complaint in capsys.readouterr().err + str(ended.value)
