"""acceptance 4.10 over sockets: whatever a client does with its connection, its work ends."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skirret_server.api.answer import Pace

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
LONG = {"max_tokens": 1500, "ignore_eos": True}
WAYS: list[Any] = [
    pytest.param(CHAT, {"messages": MESSAGES, **LONG}, 1, id="A1-plain"),
    pytest.param(CHAT, {"messages": MESSAGES, "stream": True, **LONG}, 1, id="A1-stream"),
    pytest.param(CHAT, {"messages": MESSAGES, "n": 2, **LONG}, 2, id="A2-plain"),
    pytest.param(CHAT, {"messages": MESSAGES, "n": 4, "stream": True, **LONG}, 4, id="A2-stream"),
    pytest.param(TEXT, {"prompt": ["a", "b"], **LONG}, 2, id="text"),
    pytest.param(TEXT, {"prompt": "a", "stream": True, **LONG}, 1, id="text-stream"),
    pytest.param("/v1/responses", {"input": "a", "max_output_tokens": 1500}, 1, id="responses"),
    pytest.param("/v1/responses", {"input": "a", "max_output_tokens": 1500, "stream": True}, 1,
                 id="responses-stream"),
    pytest.param("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1500}}, 1,
                 id="generate"),
    pytest.param("/generate", {"text": ["a", "b"], "stream": True,
                               "sampling_params": {"max_new_tokens": 1500}}, 2,
                 id="generate-stream"),
]  # fmt: skip


async def asked(port: int, path: str, body: dict[str, Any], **options: Any) -> socket.socket:
    """A connection on which the request has been sent."""
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", port))
    data = json.dumps(body if path == "/generate" else {"model": "tiny", **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    await loop.sock_sendall(connection, head.encode() + data)
    return connection


def hang_up(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


async def nothing_is_held(server: Any, within: float = 1.0) -> None:
    async with asyncio.timeout(within):
        while set((await server.accounting()).values()) != {0}:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("path", "body", "count"), WAYS)
@pytest.mark.parametrize("leave", [hang_up, reset])
async def test_work_ends_within_a_second_of_its_clients_leaving(
    saying: Any, path: str, body: dict[str, Any], count: int, leave: Any
) -> None:
    """A1, A2"""
    server = saying("x", script={"ends": None, "waits_after": 3, "gate": asyncio.Event()})
    async with server.listening() as port:
        connection = await asked(port, path, body)
        await until(lambda: len(server.engine.running) == count)
        leave(connection)
        await nothing_is_held(server)
    assert server.engine.aborted == count


async def test_a_client_that_leaves_half_way_through_its_body_leaves_nothing(saying: Any) -> None:
    server = saying("x")
    async with server.listening() as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        await nothing_is_held(server)
    assert not server.engine.requests


@pytest.fixture
def narrow(opening: Any, folder: Path) -> Iterator[Any]:
    with opening(folder, max_running_requests=1, chunked_prefill_size=16) as engine:
        yield engine


async def test_a_request_that_waits_in_the_queue_leaves_it_with_its_client(
    saying: Any, narrow: Any
) -> None:
    server = saying(engine=narrow)
    async with server.listening() as port:
        first = await asked(port, CHAT, {"messages": MESSAGES, "stream": True, **LONG})
        await until(lambda: narrow.load().running == 1)
        waiting = [
            await asked(port, CHAT, {"messages": MESSAGES, "stream": stream, **LONG})
            for stream in (False, True)
        ]
        await until(lambda: narrow.load().waiting == 2)
        for connection in waiting:
            hang_up(connection)
        await until(lambda: narrow.load().waiting == 0, 1)
        hang_up(first)
        await nothing_is_held(server)


async def test_a_prompt_is_computed_no_further_than_its_client_stays(
    saying: Any, narrow: Any
) -> None:
    server = saying(engine=narrow)
    async with server.listening() as port:
        connection = await asked(port, TEXT, {"prompt": [65] * 2000, "max_tokens": 40})
        await until(lambda: narrow.load().running == 1)
        hang_up(connection)
        await nothing_is_held(server)
    assert narrow.stats().steps < 2000 / 16
    assert narrow.stats().generation_tokens == 0


async def test_a_client_that_leaves_while_its_grammar_is_compiled_leaves_nothing(
    real: Any,
) -> None:
    """A4"""
    wide = {"type": "object", "properties": {f"p{i}": {} for i in range(400)}}
    async with real.listening() as port:
        connections = [
            await asked(port, CHAT, {"messages": MESSAGES, "json_schema": wide, "stream": stream})
            for stream in (False, True)
        ]
        await asyncio.sleep(0.05)
        gone = 'skirret:http_responses_total{status="499"}'
        for connection in connections:
            hang_up(connection)
        async with asyncio.timeout(1):
            while f"{gone} 2.0" not in (await real.get("/metrics")).body.decode():
                await asyncio.sleep(0.01)
        await nothing_is_held(real)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_reader_that_stalls_holds_little_and_is_cut(saying: Any, n: int) -> None:
    """A5"""
    server = saying("x", script={"ends": None}, pace=Pace(stall=0.3))
    async with server.listening() as port:
        body = {"messages": MESSAGES, "stream": True, "n": n, "max_tokens": 2000}
        connection = await asked(port, CHAT, body, SO_RCVBUF=4096)
        await until(lambda: len(server.engine.running) == n)
        other = await asyncio.open_connection("127.0.0.1", port)
        other[1].write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await other[0].readline()).startswith(b"HTTP/1.1 200")
        other[1].close()
        await nothing_is_held(server, within=2.0)
        assert server.engine.aborted == n
        assert (await server.chat(max_tokens=3)).status == 200
        if sys.platform == "linux":
            with connection, pytest.raises(ConnectionResetError):
                await all_of(connection)


async def all_of(connection: socket.socket) -> None:
    """Reads to the end, once the other side has waited long enough to give up."""
    await asyncio.sleep(1.0)
    while await asyncio.get_running_loop().sock_recv(connection, 1 << 20):
        pass
