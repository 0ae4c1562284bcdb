"""Both ways to have a line answered: over HTTP, and in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from skirret_batch.completions import (
    Answer,
    AsgiCompletions,
    Broken,
    HttpCompletions,
    Load,
    TimedOut,
    Turn,
    Unreachable,
)

PATH = "/v1/chat/completions"


async def answer(request: web.Request) -> web.StreamResponse:
    match (await request.read()).decode():
        case "cut":
            assert request.transport is not None
            request.transport.abort()
        case "slow":
            await asyncio.sleep(30)
    return web.json_response(
        {
            "token": request.headers["authorization"],
            **{name: request.headers[f"x-skirret-{name}"] for name in ("deadline", "priority")},
        },
        headers={"X-Skirret-Load": "3,1,0.5"},
    )


async def model(request: web.Request) -> web.Response:
    names = {"a/b": {"id": "a/b", "root": "ns/m"}, "plain": {"id": "plain"}}
    name = request.match_info["name"]
    if name == "loading":
        return web.json_response({}, status=503)
    return web.json_response(names.get(name, {}), status=200 if name in names else 404)


@pytest.fixture
async def gateway() -> AsyncIterator[HttpCompletions]:
    app = web.Application()
    app.router.add_post(PATH, answer)
    app.router.add_get("/v1/models/{name:.*}", model)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = HttpCompletions(f"http://127.0.0.1:{runner.addresses[0][1]}/", "tok", timeout=0.5)
    yield client
    await client.close()
    await runner.cleanup()


async def test_the_gateway_is_asked_with_the_token_and_the_batchs_claims(
    gateway: HttpCompletions,
) -> None:
    got = await gateway.complete(PATH, b"x", Turn(123.9, priority=-7))
    assert got.body == b'{"token": "Bearer tok", "deadline": "123", "priority": "-7"}'
    assert got.load == Load(3, 1, 0.5)


async def test_what_a_model_is_called_and_what_it_is(gateway: HttpCompletions) -> None:
    assert await gateway.model("a/b") == "ns/m"
    assert await gateway.model("plain") == "plain"
    assert await gateway.model("nothing") is None
    with pytest.raises(Unreachable):
        await gateway.model("loading")


async def test_every_way_to_fail_has_its_name(gateway: HttpCompletions) -> None:
    with pytest.raises(Broken):
        await gateway.complete(PATH, b"cut", Turn(0))
    with pytest.raises(TimedOut):
        await gateway.complete(PATH, b"slow", Turn(0))
    nobody = HttpCompletions("http://127.0.0.1:1", "tok", timeout=0.5)
    with pytest.raises(Unreachable):
        await nobody.complete(PATH, b"x", Turn(0))
    await nobody.close()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("9999", 120.0), ("-1", 0.0), ("soon", None), (None, None)],
)
def test_a_retry_after_is_believed_within_reason(header: str | None, seconds: float | None) -> None:
    headers = {} if header is None else {"retry-after": header}
    assert Answer(429, b"", headers).retry_after == seconds


@pytest.mark.parametrize("header", [None, "", "1,2", "a,b,c", "1,2,3,4"])
def test_a_load_that_is_not_said_is_not_known(header: str | None) -> None:
    assert Answer(200, b"", {} if header is None else {"x-skirret-load": header}).load is None


def local(timeout: float = 5.0) -> tuple[AsgiCompletions, list[str]]:
    app = FastAPI()
    events: list[str] = []

    @app.post(PATH)
    async def chat(request: Request) -> Response:
        body = await request.body()
        if body == b"slow":
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                events.append("aborted")
                raise
        return JSONResponse({"lane": request.headers["x-skirret-lane"]})

    @app.get("/v1/models/{name:path}")
    async def retrieve(name: str) -> Response:
        return JSONResponse({"id": name}, 200 if name == "a/b" else 404)

    return AsgiCompletions(app, {"x-skirret-lane": "batch"}, timeout), events


async def test_the_server_in_this_process_is_asked_without_a_socket() -> None:
    completions, _ = local()
    got = await completions.complete(PATH, b"x", Turn(1))
    assert (got.status, got.body) == (200, b'{"lane":"batch"}')
    assert await completions.model("a/b") == "a/b"
    assert await completions.model("c") is None


async def test_leaving_a_request_aborts_it() -> None:
    completions, events = local(timeout=0.05)
    with pytest.raises(TimedOut):
        await completions.complete(PATH, b"slow", Turn(1))
    assert events == ["aborted"]
