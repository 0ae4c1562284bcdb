"""A known model without a server: requests wait, streams are kept awake, nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from skirret_gateway.forward import ForwardSettings
from skirret_gateway.gateway import Settings
from skirret_gateway.hold import HoldLimits
from skirret_gateway.sse import COMMENT
from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import request
from skirret_gateway.testing.running import CHAT, Running, Start, chat
from skirret_gateway.testing.scripted import DONE, ScriptedServer, event

AWAKE = replace(Settings(), forward=ForwardSettings(heartbeat_after=0.05, heartbeat_every=0.05))


def wake(gateway: Running, *urls: str) -> None:
    """The model has servers now; as an editor does, by a new file in place of the old."""
    new = gateway.endpoints.with_suffix(".new")
    new.write_text(json.dumps({"m": list(urls)}))
    os.replace(new, gateway.endpoints)


async def held(gateway: Running, count: int) -> None:
    """As soon as so many wait."""
    async with asyncio.timeout(5):
        while (await gateway.ask("GET", "/internal/demand")).json()["models"]["m"]["held"] != count:
            await asyncio.sleep(0.01)


async def test_a_request_waits_until_its_model_has_a_server(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": []})
    task = asyncio.create_task(gateway.chat())
    await held(gateway, 1)
    wake(gateway, server.url)
    assert (await task).status == 200


async def test_two_hundred_clients_wait_and_all_are_answered_again_after_a_second_sleep(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": []})
    for _ in range(2):
        tasks = [asyncio.create_task(gateway.chat()) for _ in range(200)]
        await held(gateway, 200)
        wake(gateway, server.url)
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        wake(gateway)
        await routes(gateway, 0)


async def routes(gateway: Running, count: int) -> None:
    """As soon as the model has so many servers."""
    line = f'skirret_gateway_replicas{{model="m"}} {count}.0'.encode()
    async with asyncio.timeout(5):
        while line not in (await gateway.ask("GET", "/metrics")).body:
            await asyncio.sleep(0.01)


async def test_a_request_waits_while_its_only_server_is_draining(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.draining())
    assert (await gateway.chat()).status == 200
    assert len(server.seen) == 2


async def test_a_request_waits_while_its_only_server_is_started_anew(start: Start) -> None:
    async with ScriptedServer() as old:
        gateway = await start({"m": [old.url]})
        await gateway.chat()
    task = asyncio.create_task(gateway.chat())
    await held(gateway, 1)
    async with ScriptedServer(port=old.port) as new:
        assert (await task).status == 200
        assert len(new.seen) == 1


async def test_who_waited_for_too_long_is_told_to_come_back(start: Start) -> None:
    gateway = await start({"m": []}, replace(Settings(), hold_timeout=0.1))
    answer = await gateway.chat()
    assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
    assert 1 <= int(answer.headers["retry-after"]) <= 120


async def test_who_finds_no_room_to_wait_is_told_to_come_back(start: Start) -> None:
    gateway = await start({"m": []}, replace(Settings(), hold=HoldLimits(per_model=1)))
    async with gateway.client() as first:
        await first.send(request("POST", CHAT, chat()))
        await held(gateway, 1)
        answer = await gateway.chat()
    assert answer.status == 503
    assert "retry-after" in answer.headers


async def test_the_bytes_of_those_who_wait_are_bounded(start: Start) -> None:
    gateway = await start({"m": []}, replace(Settings(), hold=HoldLimits(bytes=1000)))
    assert (await gateway.chat(user="x" * 1000)).status == 503


async def test_a_client_that_leaves_waits_no_more(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": []})
    async with gateway.client() as client:
        await client.send(request("POST", CHAT, chat()))
        await held(gateway, 1)
    await held(gateway, 0)
    wake(gateway, server.url)
    await gateway.chat()
    assert len(server.seen) == 1


async def test_a_plain_request_waits_in_silence(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": []}, AWAKE)
    async with gateway.client() as client:
        await client.send(request("POST", CHAT, chat()))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.head()


async def test_a_stream_that_waits_is_kept_awake_with_comments(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": []}, AWAKE)
    server.default = scripted.stream(event("a"), DONE)
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat(stream=True)))
        assert (await client.head()).headers["content-type"].startswith("text/event-stream")
        assert await client.chunk() == COMMENT
        assert await client.chunk() == COMMENT
        wake(gateway, server.url)
        rest = b"".join([chunk async for chunk in client.chunks()])
    assert rest.replace(COMMENT, b"") == event("a") + DONE


async def opened(gateway: Running, server: ScriptedServer | None) -> bytes:
    """A stream that was opened before there was an answer, without its comments."""
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat(stream=True)))
        assert (await client.head()).status == 200
        await client.chunk()
        if server is not None:
            wake(gateway, server.url)
        rest = b"".join([chunk async for chunk in client.chunks()])
    return rest.replace(COMMENT, b"")


async def test_a_later_failure_is_an_error_in_the_stream(start: Start) -> None:
    gateway = await start({"m": []}, replace(AWAKE, hold_timeout=0.2))
    error, done, _ = (await opened(gateway, None)).split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "service_unavailable"
    assert done == b"data: [DONE]"


async def test_a_later_refusal_of_the_server_is_an_error_in_the_stream(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": []}, AWAKE)
    refusal = {"error": {"message": "No.", "type": "t", "param": "n", "code": "c"}}
    server.default = scripted.answer(refusal, 400)
    error, done, _ = (await opened(gateway, server)).split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: ")) == refusal
    assert done == b"data: [DONE]"


async def test_a_later_answer_that_makes_no_sense_is_an_error_in_the_stream(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": []}, AWAKE)
    server.default = scripted.raw(
        scripted.head(502, ("content-type", "text/html"), ("content-length", "6")) + b"<html>"
    )
    error, done, _ = (await opened(gateway, server)).split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "server_error"
    assert done == b"data: [DONE]"


async def test_a_model_that_is_taken_away_is_not_found_by_those_who_wait(
    start: Start, tmp_path: Path
) -> None:
    gateway = await start({"m": []})
    task = asyncio.create_task(gateway.chat())
    await held(gateway, 1)
    gateway.endpoints.write_text("{}")
    assert (await task).status == 404


async def test_demand_tells_of_every_model(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url], "asleep": []})
    await gateway.chat()
    demand = (await gateway.ask("GET", "/internal/demand")).json()
    assert demand["started_at"] > 0
    assert demand["models"]["asleep"] == {"held": 0, "running": 0, "last_request_age": None}
    assert 0 <= demand["models"]["m"]["last_request_age"] < 5
