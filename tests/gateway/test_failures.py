"""Servers that fail: what is tried again, and what the client is told."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace

import pytest

from skirret_gateway.gateway import Settings
from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import request
from skirret_gateway.testing.running import CHAT, Running, Start, chat
from skirret_gateway.testing.scripted import DONE, ScriptedServer, event, head
from skirret_gateway.upstream import PoolSettings


def dead_url() -> str:
    """Nobody listens there."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}"


async def streamed(gateway: Running) -> bytes:
    answer = await gateway.chat(stream=True)
    assert answer.status == 200
    return answer.body


def error_in(stream: bytes) -> dict[str, str]:
    """The error event of a stream, which must be its last but [DONE]."""
    error, done, rest = stream.split(b"\n\n")[-3:]
    assert (done, rest) == (b"data: [DONE]", b"")
    found: dict[str, str] = json.loads(error.removeprefix(b"data: "))["error"]
    return found


async def test_another_server_is_asked_when_one_can_not_be_reached(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [dead_url(), server.url]})
    answers = await asyncio.gather(*[gateway.chat() for _ in range(10)])
    assert [answer.status for answer in answers] == [200] * 10


@pytest.mark.parametrize("stream", [False, True])
async def test_another_server_is_asked_when_one_is_draining(start: Start, stream: bool) -> None:
    good = scripted.stream(event("a"), DONE) if stream else None
    async with (
        ScriptedServer(scripted.draining()) as leaving,
        ScriptedServer(good) as staying,
    ):
        gateway = await start({"m": [leaving.url, staying.url]})
        for _ in range(6):
            assert (await gateway.chat(stream=stream)).status == 200
        assert len(leaving.seen) <= 2


async def test_a_plain_request_is_sent_once_more_when_its_connection_ends(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.cut)
    assert (await gateway.chat()).status == 200
    assert len(server.seen) == 2


async def test_a_plain_request_is_sent_no_third_time(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.default = scripted.cut
    answer = await gateway.chat()
    assert (answer.status, answer.error["code"]) == (502, "bad_gateway")
    assert int(answer.headers["retry-after"]) >= 1
    assert len(server.seen) == 2


async def test_a_stream_is_not_sent_again(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.default = scripted.cut
    assert (await gateway.chat(stream=True)).status == 502
    assert len(server.seen) == 1


async def test_a_stream_is_sent_again_when_a_kept_connection_was_closed_meanwhile(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    await gateway.chat()
    server.script += [scripted.cut, scripted.stream(event("a"), DONE)]
    assert await streamed(gateway) == event("a") + DONE


async def test_nothing_is_sent_again_after_a_byte(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.raw(head(200, ("content-length", "10")) + b"half", close=True))
    with pytest.raises(asyncio.IncompleteReadError):
        await gateway.chat()
    assert len(server.seen) == 1


async def test_a_stream_that_is_cut_ends_with_an_error(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.stream(event("a"), event("b"), end=b""))
    stream = await streamed(gateway)
    assert stream.startswith(event("a") + event("b"))
    assert error_in(stream)["type"] == "server_error"


async def test_a_stream_that_is_cut_within_an_event_ends_with_an_error(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.stream(event("a"), b'data: {"choices": [{"del', end=b""))
    stream = await streamed(gateway)
    assert stream.count(b"data: ") == 3
    assert error_in(stream)["type"] == "server_error"


async def test_a_killed_server_gives_each_of_its_streams_an_error(start: Start) -> None:
    async with ScriptedServer(scripted.stream(*[event("a")] * 1000, pause=0.01)) as server:
        gateway = await start({"m": [server.url]})
        tasks = [asyncio.create_task(streamed(gateway)) for _ in range(20)]
        await server.arrived(20)
        await asyncio.sleep(0.1)
        await server.stop()
        for stream in await asyncio.gather(*tasks):
            assert error_in(stream)["type"] == "server_error"


async def test_a_stream_that_ends_with_its_connection_before_done_ends_with_an_error(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.raw(head(200, scripted.EVENTS) + event("a"), close=True))
    assert error_in(await streamed(gateway))


async def test_a_stream_that_is_cut_after_done_is_whole(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.stream(event("a"), DONE, end=b""))
    assert await streamed(gateway) == event("a") + DONE


async def test_an_answer_that_is_no_http_is_an_error(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.default = scripted.raw(b"220 mail.example ESMTP\r\n\r\n")
    assert (await gateway.chat()).status == 502


@pytest.mark.parametrize("stream", [False, True])
async def test_the_server_stops_when_the_client_is_gone(
    start: Start, server: ScriptedServer, stream: bool
) -> None:
    gateway = await start({"m": [server.url]})
    server.default = scripted.silence
    async with gateway.client() as client:
        await client.send(request("POST", CHAT, chat(stream=stream)))
        seen = await server.arrived(1)
    async with asyncio.timeout(1):
        await seen.gone.wait()


async def test_the_server_stops_when_the_client_is_gone_in_the_middle(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.default = scripted.stream(*[event("a")] * 1000, pause=0.01)
    async with gateway.client() as client:
        await client.send(request("POST", CHAT, chat(stream=True)))
        await client.head()
        await client.chunk()
    async with asyncio.timeout(1):
        await server.seen[0].gone.wait()


async def test_a_server_that_closes_every_connection_at_once_is_an_error(start: Start) -> None:
    class Closing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    loop = asyncio.get_running_loop()
    async with await loop.create_server(Closing, "127.0.0.1", 0) as closing:
        gateway = await start({"m": [f"http://127.0.0.1:{closing.sockets[0].getsockname()[1]}"]})
        answers = await asyncio.gather(*[gateway.chat() for _ in range(20)])
    assert {answer.status for answer in answers} == {502}


async def test_a_server_that_falls_silent_is_given_up(start: Start, server: ScriptedServer) -> None:
    settings = replace(Settings(), pool=PoolSettings(idle_timeout=0.2))
    gateway = await start({"m": [server.url]}, settings)
    server.default = scripted.stream(event("a"), pause=60)
    assert error_in(await streamed(gateway))


async def test_a_request_that_got_no_answer_in_time_is_not_sent_again(
    start: Start, server: ScriptedServer
) -> None:
    settings = replace(Settings(), pool=PoolSettings(idle_timeout=0.2))
    gateway = await start({"m": [server.url]}, settings)
    server.default = scripted.silence
    answer = await gateway.chat()
    assert (answer.status, answer.headers["x-should-retry"]) == (503, "false")
    assert len(server.seen) == 1


async def test_a_stream_may_last_longer_than_a_server_may_be_silent(
    start: Start, server: ScriptedServer
) -> None:
    settings = replace(Settings(), pool=PoolSettings(idle_timeout=0.6))
    gateway = await start({"m": [server.url]}, settings)
    server.default = scripted.stream(*[event("a")] * 15, DONE, pause=0.1)
    assert await streamed(gateway) == event("a") * 15 + DONE


async def test_a_server_that_does_not_accept_is_given_up(
    start: Start, server: ScriptedServer
) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        for _ in range(4):  # until its queue takes no more
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(full.getsockname())
        settings = replace(Settings(), pool=PoolSettings(connect_timeout=0.1))
        full_url = f"http://127.0.0.1:{full.getsockname()[1]}"
        gateway = await start({"m": [full_url, server.url]}, settings)
        answers = await asyncio.gather(*[gateway.chat() for _ in range(4)])
        assert [answer.status for answer in answers] == [200] * 4
        for client in waiting:
            client.close()


async def test_errors_of_a_server_are_counted_by_model(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.cut)
    await gateway.chat()
    page = (await gateway.ask("GET", "/metrics")).body.decode()
    assert 'skirret_gateway_upstream_failures_total{model="m",outcome="cut"} 1.0' in page
    assert 'skirret_gateway_requests_total{model="m",status="200"} 1.0' in page
