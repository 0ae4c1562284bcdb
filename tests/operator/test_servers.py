"""Asking a server that loads how far it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from skirret_operator.reconcile.cause import Progress
from skirret_operator.servers import Servers
from skirret_operator.testing.objects import NAMESPACE, pod


class Server:
    """Answers /status with what it is told to."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.status = 200
        self.tokens: list[str | None] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("x-skirret-token"))
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def servers(server: Server) -> AsyncIterator[Servers]:
    app = web.Application()
    app.router.add_get("/status", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield Servers(session, {NAMESPACE: "secret"}, port=runner.addresses[0][1])
    await runner.cleanup()


async def test_a_loading_server_tells_how_far_it_is(servers: Servers, server: Server) -> None:
    server.answer = {"phase": "loading", "percent": 43, "eta_seconds": 20.5, "more": "x"}
    found = await servers.progress([pod(podIP="127.0.0.1")])
    assert found == {"smollm2-0": Progress("loading", percent=43.0, eta_seconds=20.5)}
    assert server.tokens == ["secret"]


@pytest.mark.parametrize("answer", [{}, {"phase": 1}, {"phase": None}, [], "text"])
async def test_an_answer_that_makes_no_sense_is_none(
    servers: Servers, server: Server, answer: Any
) -> None:
    server.answer = answer
    assert await servers.progress([pod(podIP="127.0.0.1")]) == {}


async def test_a_server_that_fails_or_is_not_there_is_left_out(
    servers: Servers, server: Server
) -> None:
    server.status = 500
    pods = [pod("a", podIP="127.0.0.1"), pod("b", podIP="127.0.0.9"), pod("c", podIP=None)]
    assert await servers.progress(pods) == {}
