"""An end that was asked for: answers go on for a while, everybody else is told to come back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from skirret_gateway.gateway import Settings
from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import request
from skirret_gateway.testing.running import CHAT, Running, Start, chat
from skirret_gateway.testing.scripted import DONE, ScriptedServer, event


async def streams(gateway: Running, count: int) -> list[bytes]:
    answers = await asyncio.gather(*[gateway.chat(stream=True) for _ in range(count)])
    return [answer.body for answer in answers]


async def test_streams_go_on_to_their_end(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]}, replace(Settings(), drain_timeout=10))
    gate = asyncio.Event()
    server.default = scripted.gated(gate, scripted.stream(event("a"), event("b"), DONE))
    task = asyncio.create_task(streams(gateway, 200))
    await server.arrived(200)
    asyncio.get_running_loop().call_later(0.02, gate.set)
    await gateway.gateway.stop()
    assert await task == [event("a") + event("b") + DONE] * 200


async def test_streams_that_last_too_long_end_with_an_error(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.default = scripted.stream(*[event("a")] * 1000, pause=0.01)
    task = asyncio.create_task(streams(gateway, 5))
    await server.arrived(5)
    await gateway.gateway.stop()
    for stream in await task:
        error, done, _ = stream.split(b"\n\n")[-3:]
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "service_unavailable"
        assert done == b"data: [DONE]"


async def test_who_waits_for_a_server_is_told_to_come_back(start: Start) -> None:
    gateway = await start({"m": []})
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat()))
        await asyncio.sleep(0.05)
        await gateway.gateway.stop()
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert "retry-after" in answer.headers


async def test_plain_requests_that_last_too_long_are_told_to_come_back(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.default = scripted.silence
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat()))
        seen = await server.arrived(1)
        await gateway.gateway.stop()
        assert (await client.answer()).status == 503
        await seen.gone.wait()


async def test_idle_connections_end_and_new_ones_are_refused(start: Start) -> None:
    gateway = await start()
    port = gateway.port
    async with gateway.client() as client, asyncio.timeout(5):
        await client.ask("GET", "/health")
        await gateway.gateway.stop()
        assert await client.end() == b""
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)
