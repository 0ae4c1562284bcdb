"""HTTP as clients really speak it, and what those meet who want to hurt."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from skirret_gateway.downstream import DoorLimits
from skirret_gateway.forward import ForwardSettings
from skirret_gateway.gateway import Settings
from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import request
from skirret_gateway.testing.running import CHAT, Start, chat
from skirret_gateway.testing.scripted import ScriptedServer

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def limits(**given: float) -> Settings:
    return replace(Settings(), door=DoorLimits(**given))  # type: ignore[arg-type]


async def test_a_connection_serves_one_request_after_another(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    async with gateway.client() as client, asyncio.timeout(5):
        for _ in range(3):
            assert (await client.ask("POST", CHAT, chat())).status == 200
            assert (await client.ask("GET", "/nope")).status == 404


async def test_requests_sent_at_once_are_answered_in_their_order(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.slow(0.05, scripted.answer({"first": True})))
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat()) + HEALTH + request("POST", CHAT, chat()))
        assert (await client.answer()).json() == {"first": True}
        assert (await client.answer()).json() == {"status": "ok"}
        assert (await client.answer()).json()["object"] == "chat.completion"


async def test_a_request_may_come_byte_by_byte(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    async with gateway.client() as client, asyncio.timeout(5):
        for byte in request("POST", CHAT, chat()):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200


async def test_a_client_that_asks_first_is_told_to_go_on(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    head, body = request("POST", CHAT, chat(), expect="100-continue").split(b"\r\n\r\n")
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(head + b"\r\n\r\n")
        assert (await client.head()).status == 100
        await client.send(body)
        assert (await client.answer()).status == 200


async def test_a_client_that_asks_first_is_not_told_to_send_in_vain(start: Start) -> None:
    gateway = await start()
    head = request("POST", "/nope", chat(), expect="100-continue").split(b"\r\n\r\n")[0]
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(head + b"\r\n\r\n")
        assert (await client.answer()).status == 404


async def test_http_1_0_gets_an_answer_that_ends_with_the_connection(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.stream(scripted.event("a"), scripted.DONE))
    body = json.dumps(chat(stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(head + body)
        answer = await client.answer()
    assert answer.body == scripted.event("a") + scripted.DONE
    assert answer.headers["connection"] == "close"


async def test_a_connection_ends_when_the_client_says_so(start: Start) -> None:
    gateway = await start()
    async with gateway.client() as client, asyncio.timeout(5):
        answer = await client.ask("GET", "/health", connection="close")
        assert answer.headers["connection"] == "close"
        assert await client.end() == b""


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_client_that_proposes_another_protocol_is_answered_in_this_one(
    start: Start, server: ScriptedServer, chunked: bool
) -> None:
    gateway = await start({"m": [server.url]})
    upgrade = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAE"}
    body = json.dumps(chat()).encode()
    async with gateway.client() as client, asyncio.timeout(5):
        for _ in range(2):
            if chunked:
                head = request("POST", CHAT, None, transfer_encoding="chunked", **upgrade)
                await client.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            else:
                await client.send(request("POST", CHAT, body, **upgrade))
            assert (await client.answer()).status == 200
    assert [seen.body for seen in server.seen] == [body, body]
    assert server.seen[0].header("upgrade") is None


async def test_a_whole_url_is_taken_for_its_path(start: Start) -> None:
    gateway = await start()
    assert (await gateway.ask("GET", "http://gateway/health?x=1")).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_and_the_connection_ended(
    start: Start, data: bytes
) -> None:
    gateway = await start()
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(data)
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert answer.error["type"] == "invalid_request_error"
        assert await client.end() == b""


async def test_a_body_that_breaks_the_rules_is_refused(start: Start) -> None:
    gateway = await start({"m": []})
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(f"POST {CHAT} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        await client.send(b"nonsense\r\n")
        assert (await client.answer()).status == 400


async def test_a_trailer_is_no_header_of_the_next_request(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    body = json.dumps(chat()).encode()
    chunked = request("POST", CHAT, None, transfer_encoding="chunked")
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(chunked + b"%x\r\n%b\r\n0\r\nx-late: 1\r\n\r\n" % (len(body), body))
        await client.answer()
        await client.ask("POST", CHAT, chat())
    assert [seen.header("x-late") for seen in server.seen] == [None, None]


async def test_a_flood_of_headers_is_refused(start: Start) -> None:
    gateway = await start()
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(b"GET / HTTP/1.1\r\n" + b"x-flood: 1\r\n" * 10_000)
        answer = await client.answer()
    assert (answer.status, answer.error["type"]) == (431, "invalid_request_error")


async def test_a_head_too_large_is_refused_even_if_it_comes_in_one_piece(start: Start) -> None:
    gateway = await start()
    answer = await gateway.ask("GET", "/health", x_flood="1" * 70_000)
    assert (answer.status, answer.error["type"]) == (431, "invalid_request_error")
    assert answer.headers["connection"] == "close"


async def test_a_refused_body_is_not_read_to_its_end(start: Start, server: ScriptedServer) -> None:
    settings = replace(Settings(), forward=ForwardSettings(body_bytes=1000))
    gateway = await start({"m": [server.url]}, settings)
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(f"POST {CHAT} HTTP/1.1\r\ncontent-length: 40000000\r\n\r\n".encode())
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")


async def test_a_chunked_body_over_the_limit_is_refused_on_its_way(start: Start) -> None:
    settings = replace(Settings(), forward=ForwardSettings(body_bytes=100_000))
    gateway = await start({"m": []}, settings)
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, None, transfer_encoding="chunked"))
        for _ in range(20):
            await client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        assert (await client.answer()).status == 413


async def test_bodies_together_are_bounded(start: Start) -> None:
    gateway = await start({"m": []}, limits(bodies_bytes=100_000))
    async with gateway.client() as client, gateway.client() as other, asyncio.timeout(5):
        for each in (client, other):
            await each.send(request("POST", CHAT, b"x" * 80_000)[:-10])
        answers = [asyncio.ensure_future(each.answer()) for each in (client, other)]
        refused, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().status for task in refused} == {503}
        for task in waiting:
            task.cancel()


async def test_small_requests_pass_while_large_ones_are_refused(start: Start) -> None:
    gateway = await start({"m": []}, limits(bodies_bytes=100_000))
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, b"x" * 99_900)[:-10])
        assert (await gateway.chat("unknown", user="x" * 1000)).status == 404
        assert (await gateway.chat("unknown", user="x" * 70_000)).status == 503


async def test_bodies_that_are_done_with_make_room(start: Start) -> None:
    gateway = await start({"m": []}, limits(bodies_bytes=100_000))
    for _ in range(5):
        assert (await gateway.chat("unknown", user="x" * 60_000)).status == 404


async def test_a_head_that_takes_too_long_ends_its_connection(start: Start) -> None:
    gateway = await start({}, limits(head_seconds=0.1))
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(b"GET /health HTTP/1.1\r\n")
        assert await client.end() == b""


async def test_a_request_that_began_too_early_does_not_end_the_answer_before_it(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]}, limits(head_seconds=0.1))
    server.script.append(scripted.slow(1, scripted.answer({})))
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat()) + HEALTH[:10])
        assert (await client.answer()).status == 200
        await client.send(HEALTH[10:])
        assert (await client.answer()).json() == {"status": "ok"}


async def test_a_connection_that_asks_nothing_is_ended(start: Start) -> None:
    gateway = await start({}, limits(idle_seconds=0.1))
    async with gateway.client() as client, asyncio.timeout(5):
        assert await client.end() == b""


async def test_a_body_that_takes_too_long_is_refused(start: Start) -> None:
    gateway = await start({"m": []}, limits(body_seconds=0.1))
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat())[:-1])
        assert (await client.answer()).status == 400


async def test_a_client_that_never_reads_is_ended_in_time(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]}, limits(stalled_seconds=0.2))
    server.default = scripted.stream(*[scripted.event("x" * 100_000)] * 500)
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat(stream=True)))
        await (await server.arrived(1)).gone.wait()


async def test_more_connections_than_allowed_are_ended_at_once(start: Start) -> None:
    gateway = await start({}, limits(connections=2))
    async with gateway.client() as one, gateway.client() as two, asyncio.timeout(5):
        assert (await one.ask("GET", "/health")).status == 200
        assert (await two.ask("GET", "/health")).status == 200
        async with gateway.client() as three:
            assert await three.end() == b""


async def test_hundreds_of_half_open_connections_disturb_nobody(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    clients = [gateway.client() for _ in range(300)]
    for client in clients:
        await client.__aenter__()
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: ")
    assert (await gateway.chat()).status == 200
    for client in clients:
        client.hang_up()
