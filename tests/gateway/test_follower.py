"""Routing by what servers say they have cached, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from skirret_api import internal
from skirret_gateway.follower import read
from skirret_gateway.gateway import Settings
from skirret_gateway.prompt import Block
from skirret_gateway.table import Replica
from skirret_gateway.testing.caching import CachingServer
from skirret_gateway.testing.running import CHAT, Running, Start, mount_tenants
from skirret_gateway.testing.scripted import ScriptedServer

TEXT = "You are a plant. " * 200


def blocks(of: ScriptedServer) -> list[Block]:
    """Those of the last prompt that a server was sent."""
    header = of.seen[-1].header(internal.BLOCKS)
    assert header is not None
    return [bytes.fromhex(name) for name in header.split(",")]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture
async def servers() -> AsyncIterator[list[CachingServer]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(CachingServer()) for _ in range(3)]


@pytest.fixture
async def gateway(start: Start, servers: list[CachingServer], tmp_path: Path) -> Running:
    settings = replace(Settings(), strategy="CacheAware", tenants=mount_tenants(tmp_path, ""))
    gateway = await start({"m": [server.url for server in servers]}, settings)
    await until(lambda: all(server.asked > 1 for server in servers))
    return gateway


async def ask(gateway: Running, servers: list[CachingServer]) -> CachingServer:
    """Who answered."""
    before = [len(server.seen) for server in servers]
    body = {"model": "m", "messages": [{"role": "user", "content": TEXT}]}
    assert (await gateway.ask("POST", CHAT, body)).status == 200
    (one,) = [s for s, n in zip(servers, before, strict=True) if len(s.seen) > n]
    return one


def known(gateway: Running, server: CachingServer) -> int:
    return gateway.gateway.fleet.knowledge.told.count(Replica("127.0.0.1", server.port))


async def test_a_prompt_follows_its_cache(gateway: Running, servers: list[CachingServer]) -> None:
    first = await ask(gateway, servers)
    sent = blocks(first)
    assert len(sent) == 6
    other = next(server for server in servers if server is not first)
    gateway.gateway.fleet.knowledge.expected.forget(Replica("127.0.0.1", first.port))
    other.store(sent)
    await until(lambda: known(gateway, other) == 6)
    assert await ask(gateway, servers) is other
    other.remove(sent)
    await until(lambda: known(gateway, other) == 0)


async def test_a_server_that_forgot_the_past_tells_everything(
    gateway: Running, servers: list[CachingServer]
) -> None:
    server = servers[0]
    server.store([b"12345678"])
    server.store([b"23456789"])
    server.forget()
    await until(lambda: known(gateway, server) == 2)
    server.start_anew()
    await until(lambda: known(gateway, server) == 0)
    server.store([b"34567890"])
    await until(lambda: known(gateway, server) == 1)


async def test_a_server_that_is_gone_has_nothing(
    gateway: Running, servers: list[CachingServer]
) -> None:
    servers[0].store([b"12345678"])
    await until(lambda: known(gateway, servers[0]) == 1)
    await servers[0].stop()
    await until(lambda: known(gateway, servers[0]) == 0)


async def test_servers_that_tell_nothing_are_routed_to_by_what_they_were_sent(
    start: Start,
) -> None:
    async with ScriptedServer() as one, ScriptedServer() as two:
        gateway = await start({"m": [one.url, two.url]}, replace(Settings(), strategy="CacheAware"))
        body = {"model": "m", "messages": [{"role": "user", "content": TEXT}]}
        for _ in range(6):
            assert (await gateway.ask("POST", CHAT, body)).status == 200
        counts = [len([x for x in s.seen if x.target == CHAT]) for s in (one, two)]
        assert sorted(counts) == [0, 6]


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"epoch": "1", "sequence": 1, "full": True, "stored": ["xyz"], "removed": []},
        {"epoch": "1", "sequence": None, "full": True, "stored": [], "removed": []},
    ],
)
def test_what_is_no_news_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="."):
        read(data)
