"""A network that fails between us and an S3 service: every fault there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO

import aiohttp
from aiohttp import web
from yarl import URL

FAULTS = ("slow down", "unavailable", "cut before", "cut after", "truncated", "stalled")

_SLOW_DOWN = "<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Slow down</Message></Error>"
_LARGEST = 64 << 20  # bytes of a request


class Spoiler:
    """Passes requests on to the service; `fault` names what goes wrong with each.

    cut before, cut after: the connection ends before the service had the request, or when it has
    carried it out. truncated: in the middle of its answer. stalled: it is carried out and nothing
    is answered for `stall` seconds.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.fault: Callable[[web.Request], str] = lambda request: ""
        self.stall = 5.0
        self.requests = 0
        self.ignored = ""  # a header the service doesn't have

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        fault = self.fault(request)
        if fault == "slow down":
            return web.Response(status=503, text=_SLOW_DOWN, content_type="application/xml")
        if fault == "unavailable":
            return web.Response(status=503, text="<html>no upstream</html>")
        if fault == "cut before":
            return _cut(request)
        data = await request.read()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                URL(self._target + request.raw_path, encoded=True),
                data=BytesIO(data) if data else None,
                headers={k: v for k, v in request.headers.items() if k != self.ignored},
            ) as answer,
        ):
            body = await answer.read()
            if fault == "stalled":
                await asyncio.sleep(self.stall)
            if fault == "cut after":
                return _cut(request)
            if request.transport is None:  # the client gave up
                return web.Response()
            response = web.StreamResponse(status=answer.status, headers=answer.headers)
            await response.prepare(request)
            if fault == "truncated":
                await response.write(body[: len(body) // 2])
                return _cut(request)
            if request.method != "HEAD":
                await response.write(body)
            return response


def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def spoiled(target: str) -> AsyncIterator[tuple[Spoiler, str]]:
    """A spoiler before the service at this URL, and its own URL."""
    spoiler = Spoiler(target)
    app = web.Application(client_max_size=_LARGEST)
    app.router.add_route("*", "/{path:.*}", spoiler.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield spoiler, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()
