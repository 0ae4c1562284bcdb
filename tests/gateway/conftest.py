"""A running gateway before scripted servers, on real sockets and the event loop of production."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings as hypothesis_settings

from skirret_gateway.gateway import Gateway, Settings
from skirret_gateway.testing.running import Running, Start
from skirret_gateway.testing.scripted import ScriptedServer

# A busy machine is no failure.
hypothesis_settings.register_profile("gateway", deadline=None)
hypothesis_settings.load_profile("gateway")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts gateways, for `models` (name to URLs) or as `settings` say; stops them at the end."""
    async with AsyncExitStack() as stack:

        async def started(
            models: Mapping[str, list[str]] | None = None, settings: Settings | None = None
        ) -> Running:
            endpoints = tmp_path / "endpoints.json"
            endpoints.write_text(json.dumps(models or {}))
            given, patient = settings or Settings(), Settings().drain_timeout
            gateway = Gateway(
                replace(
                    given,
                    host="127.0.0.1",
                    port=0,
                    endpoints=None if given.kubernetes else endpoints,
                    drain_timeout=0.2 if given.drain_timeout == patient else given.drain_timeout,
                    look_every=0.02,
                )
            )
            await gateway.start()
            stack.push_async_callback(gateway.stop)
            return Running(gateway, endpoints)

        yield started


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server
