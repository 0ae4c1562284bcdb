"""What reaches the server, and what comes back, byte for byte."""

from __future__ import annotations

import asyncio
import json

import pytest

from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import request
from skirret_gateway.testing.running import CHAT, Start, chat
from skirret_gateway.testing.scripted import DONE, ScriptedServer, event, head


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings", f"{CHAT}?api-version=1"]
)
async def test_a_body_reaches_the_server_unchanged(
    start: Start, server: ScriptedServer, path: str
) -> None:
    gateway = await start({"m": [server.url]})
    body = b'{ "x":"\\u00e9",\n"model" :"wrong", "model":"m", "n": 1.0e2 }'
    await gateway.ask("POST", path, body)
    assert (server.seen[0].target, server.seen[0].body) == (path, body)


async def test_an_answer_reaches_the_client_unchanged(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.answer({"b": 1, "a": [1.0, "é"]}, 201, ("x-other", "kept")))
    answer = await gateway.chat()
    assert answer.body == b'{"b": 1, "a": [1.0, "\\u00e9"]}'
    assert (answer.status, answer.headers["x-other"]) == (201, "kept")


async def test_an_error_of_the_server_is_the_clients(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.answer({"error": {"code": "x"}}, 429, ("retry-after", "7")))
    answer = await gateway.chat()
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert len(server.seen) == 1


async def test_a_chunked_body_is_sent_on_with_its_length(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    body = json.dumps(chat()).encode()
    async with gateway.client() as client:
        await client.send(f"POST {CHAT} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for piece in (body[:10], body[10:]):
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await client.send(b"0\r\nx-trailer: 1\r\n\r\n")
        assert (await client.answer()).status == 200
    assert server.seen[0].body == body
    assert server.seen[0].header("transfer-encoding") is None


async def test_each_event_comes_as_soon_as_the_server_sent_it(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    gate = asyncio.Event()

    async def behave(seen: scripted.Seen, to: scripted.Connection) -> None:
        await to.send(head(200, scripted.EVENTS, scripted.CHUNKED))
        await to.chunk(event("one"))
        await gate.wait()
        await to.chunk(event("two") + DONE)
        await to.send(b"0\r\n\r\n")

    server.script.append(behave)
    async with gateway.client() as client, asyncio.timeout(5):
        await client.send(request("POST", CHAT, chat(stream=True)))
        answer = await client.head()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert await client.chunk() == event("one")
        gate.set()
        assert await client.chunk() == event("two") + DONE
        assert await client.chunk() == b""


async def test_trailers_end_at_the_gateway(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.stream(event("a") + DONE, end=b"0\r\nx-late: 1\r\n\r\n"))
    async with gateway.client() as client:
        assert (await client.ask("POST", CHAT, chat(stream=True))).body == event("a") + DONE
        assert "x-late" not in (await client.ask("POST", CHAT, chat())).headers


async def test_an_answer_that_ends_with_its_connection_is_whole(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    kind = ("content-type", "application/json")
    server.script.append(scripted.raw(head(200, kind) + b'{"a": 1}', close=True))
    assert (await gateway.chat()).json() == {"a": 1}


async def test_early_hints_are_not_the_answer(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    final = head(200, ("content-length", "2")) + b"{}"
    server.script.append(scripted.raw(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + final))
    answer = await gateway.chat()
    assert (answer.status, answer.body) == (200, b"{}")


async def test_connections_to_a_server_are_kept_and_used_again(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    for _ in range(5):
        await gateway.chat()
    assert server.connections == 1


async def test_a_hundred_requests_at_once_have_a_hundred_connections(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    gate = asyncio.Event()
    server.default = scripted.gated(gate, server.default)
    tasks = [asyncio.create_task(gateway.chat()) for _ in range(100)]
    await server.arrived(100)
    gate.set()
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 100


async def test_a_base_url_may_have_a_path(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [f"{server.url}/behind/v1"]})
    await gateway.chat()
    assert server.seen[0].target == f"/behind{CHAT}"
    assert server.seen[0].header("host") == f"127.0.0.1:{server.port}"


async def test_what_belongs_to_one_connection_is_not_passed_on(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(
        scripted.answer({}, 200, ("connection", "keep-alive, x-hop"), ("x-hop", "1"))
    )
    answer = await gateway.ask(
        "POST", CHAT, chat(), connection="x-mine", x_mine="1", te="trailers", keep_alive="timeout=5"
    )
    for name in ("connection", "x-mine", "te", "keep-alive", "expect"):
        assert server.seen[0].header(name) is None
    assert "x-hop" not in answer.headers


async def test_a_trace_context_is_passed_on(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await gateway.ask("POST", CHAT, chat(), traceparent=trace)
    assert server.seen[0].header("traceparent") == trace


async def test_the_clients_key_is_for_the_servers_of_a_file(
    start: Start, server: ScriptedServer
) -> None:
    from dataclasses import replace

    from skirret_gateway.forward import ForwardSettings
    from skirret_gateway.gateway import Settings

    settings = replace(Settings(), forward=ForwardSettings(keeps_authorization=True))
    gateway = await start({"m": [server.url]}, settings)
    await gateway.ask("POST", CHAT, chat(), authorization="Bearer sk-theirs")
    assert server.seen[0].header("authorization") == "Bearer sk-theirs"


async def test_a_client_can_set_none_of_our_headers(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    await gateway.ask("POST", CHAT, chat(), x_skirret_token="guess", X_Skirret_Lane="interactive")
    assert not [name for name, _ in server.seen[0].headers if name.startswith("x-skirret")]


async def test_a_client_sees_none_of_our_headers(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.answer({}, 200, ("x-skirret-load", "1,0,0.5")))
    assert "x-skirret-load" not in (await gateway.chat()).headers


async def test_the_servers_request_id_is_the_clients(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    server.script.append(scripted.answer({}, 200, ("x-request-id", "its own")))
    answer = await gateway.ask("POST", CHAT, chat(), x_request_id="mine-1")
    assert answer.headers["x-request-id"] == "mine-1"
    assert server.seen[0].header("x-request-id") == "mine-1"


@pytest.mark.parametrize("given", [None, "with space", "x" * 129])
async def test_a_request_without_a_valid_id_gets_one(
    start: Start, server: ScriptedServer, given: str | None
) -> None:
    gateway = await start({"m": [server.url]})
    headers = {} if given is None else {"x_request_id": given}
    answer = await gateway.ask("POST", CHAT, chat(), **headers)
    assert answer.headers["x-request-id"].startswith("req_")
    assert server.seen[0].header("x-request-id") == answer.headers["x-request-id"]


async def test_a_client_that_reads_slowly_slows_its_server(
    start: Start, server: ScriptedServer
) -> None:
    gateway = await start({"m": [server.url]})
    sent = 0

    async def flood(seen: scripted.Seen, to: scripted.Connection) -> None:
        nonlocal sent
        await to.send(head(200, scripted.EVENTS, scripted.CHUNKED))
        piece = event("x" * 50_000)
        for _ in range(1000):
            await to.chunk(piece)
            sent += len(piece)
        await to.chunk(DONE)
        await to.send(b"0\r\n\r\n")

    server.script.append(flood)
    async with gateway.client() as client, asyncio.timeout(20):
        await client.send(request("POST", CHAT, chat(stream=True)))
        await server.arrived(1)
        await asyncio.sleep(0.3)
        stuck = sent
        assert stuck < 30_000_000  # most of it in the buffers of the kernel
        await asyncio.sleep(0.2)
        assert sent == stuck
        answer = await client.answer()
    assert answer.body.endswith(DONE)
    assert answer.body.count(b"data: ") == 1001
