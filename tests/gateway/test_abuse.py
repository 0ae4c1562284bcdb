"""Everything at once that a hostile crowd can do: others are served, memory stays bounded."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import Answer, Client, request
from skirret_gateway.testing.process import running
from skirret_gateway.testing.running import CHAT, chat
from skirret_gateway.testing.scripted import Connection, ScriptedServer, Seen, event

FULL = bool(os.environ.get("SKIRRET_FULL"))
NAMES = 10_000 if FULL else 1000
LARGE = b'{"model": "m", "x": "' + b"x" * (40 << 20) + b'"}'


async def test_a_hostile_crowd_delays_nobody_and_fills_no_memory(
    server: ScriptedServer, tmp_path: Path
) -> None:
    server.default = answered
    endpoints = tmp_path / "servers.yaml"
    endpoints.write_text(f"m: ['{server.url}']")
    flags = ("--endpoints", str(endpoints), "--access-log", "off")
    async with running(*flags) as (process, port), AsyncExitStack() as stack:
        before = resident(process.pid)
        crowd = [await stack.enter_async_context(Client(port)) for _ in range(1000)]
        for client in crowd:
            await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: ")
        hostile = asyncio.gather(
            *[dripped(client) for client in crowd[:50]],
            *[refused(port, 413, LARGE) for _ in range(8)],
            *[refused(port, 431, b"{}", x_flood="x" * 100_000) for _ in range(50)],
            *[deaf(port) for _ in range(20)],
            made_up(port),
        )
        delays = [await delay(port) for _ in range(30)]
        await hostile
        page = (await ask(port, "GET", "/metrics")).body
        grown = resident(process.pid) - before
    assert sorted(delays)[len(delays) // 2] < 1
    assert b"made-up" not in page
    assert grown < 150


async def answered(seen: Seen, to: Connection) -> None:
    whole = scripted.answer(scripted.COMPLETION)
    long = scripted.stream(*[event("x" * 60_000)] * 100)
    await (long if b'"stream": true' in seen.body else whole)(seen, to)


async def delay(port: int) -> float:
    """Seconds that an honest request takes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await ask(port, "POST", CHAT, chat())).status == 200
    return loop.time() - began


async def dripped(client: Client) -> None:
    """A head that never ends, a byte at a time."""
    with suppress(ConnectionError):
        for _ in range(20):
            await client.send(b"x")
            await asyncio.sleep(0.05)


async def refused(port: int, status: int, body: bytes, **headers: str) -> None:
    async with Client(port) as client:
        sending = asyncio.ensure_future(client.send(request("POST", CHAT, body, **headers)))
        answer = await client.answer()
        sending.cancel()
        with suppress(ConnectionError, asyncio.CancelledError):
            await sending
    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"


async def deaf(port: int) -> None:
    """Asks for a long stream and reads none of it."""
    async with Client(port) as client:
        await client.send(request("POST", CHAT, chat(stream=True)))
        await asyncio.sleep(1)


async def made_up(port: int) -> None:
    async with Client(port) as client:
        for number in range(NAMES):
            answer = await client.ask("POST", CHAT, chat(f"made-up-{number}"))
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def ask(port: int, *asked: object) -> Answer:
    async with asyncio.timeout(20), Client(port) as client:
        return await client.ask(*asked)  # type: ignore[arg-type]


def resident(pid: int) -> float:
    """MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
