"""The operator's one HTTP door: /healthz for kubelet, /metrics for Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest


@asynccontextmanager
async def door(
    port: int, registry: CollectorRegistry, trouble: Callable[[], str | None]
) -> AsyncIterator[int]:
    """Open while the context lasts; gives the port. `trouble` says what ails the operator."""

    async def healthz(_: web.Request) -> web.Response:
        words = trouble()
        return web.Response(status=500 if words else 200, text=words or "ok")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "0.0.0.0", port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
