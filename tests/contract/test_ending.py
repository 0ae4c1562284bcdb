"""acceptance 4.10: clients that go, requests that are aborted, servers that drain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skirret_api import internal
from skirret_server.api.answer import Pace
from skirret_server.api.app import Access
from skirret_server.api.exchange import Message

CHAT = "/v1/chat/completions"
ENDLESS = {"ends": None}


@pytest.mark.parametrize("body", [{"stream": False}, {"stream": True}, {"stream": True, "n": 4}])
async def test_work_for_a_client_that_left_ends(
    saying: Any, chat: Any, body: dict[str, Any]
) -> None:
    """A1, A2"""
    server = saying("x", script={**ENDLESS, "waits_after": 5, "gate": asyncio.Event()})
    task = asyncio.create_task(_start(server, chat(max_tokens=2000, ignore_eos=True, **body)))
    while len(server.engine.running) < body.get("n", 1):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.until_idle()
    assert server.engine.aborted == body.get("n", 1)


async def _start(server: Any, body: dict[str, Any]) -> None:
    call = server.call(CHAT, body)
    try:
        async with call:
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        call.hang_up()
        raise


async def test_a_reader_that_stalls_is_cut_and_others_go_on(saying: Any, chat: Any) -> None:
    """A5"""
    script = {**ENDLESS, "waits_after": 10, "gate": asyncio.Event()}
    server = saying("x", script=script, pace=Pace(heartbeat=60, stall=0.05))
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) > 3:
            await asyncio.Event().wait()

    call = server.call(CHAT, chat(stream=True, max_tokens=2000))
    async with asyncio.timeout(5):
        await server.app(call._scope, call._receive, send)
    await server.until_idle()
    assert server.engine.aborted == 1
    assert (await server.chat(max_tokens=3)).status == 200


async def test_an_aborted_request_is_an_error_nobody_retries(saying: Any, chat: Any) -> None:
    server = saying("x", script={**ENDLESS, "waits_after": 1, "gate": asyncio.Event()})
    asked = asyncio.create_task(server.post(CHAT, chat(rid="mine")))
    while not server.engine.running:
        await asyncio.sleep(0)
    assert (await server.post("/abort_request", {"rid": "mine"})).json() == {"aborted": 1}
    response = await asked
    assert response.status == 500
    assert response.json()["error"]["code"] == "request_aborted"
    assert response.headers["x-should-retry"] == "false"
    await server.until_idle()


async def test_a_rid_in_use_is_refused_and_the_first_goes_on(saying: Any) -> None:
    """V14"""
    gate = asyncio.Event()
    server = saying("x", script={"waits_after": 1, "gate": gate})
    body = {"text": "hi", "rid": "a"}
    first = asyncio.create_task(server.post("/generate", body))
    while not server.engine.running:
        await asyncio.sleep(0)
    assert (await server.post("/generate", body)).status == 400
    gate.set()
    assert (await first).status == 200
    assert (await server.post("/generate", body)).status == 200


async def test_a_drain_refuses_new_work_and_waits_for_the_running(saying: Any, chat: Any) -> None:
    """A10"""
    gate = asyncio.Event()
    server = saying("x", script={"waits_after": 1, "gate": gate})
    running = asyncio.create_task(server.post(CHAT, chat(stream=True)))
    while not server.engine.running:
        await asyncio.sleep(0)
    drain = asyncio.create_task(server.lifecycle.drain(60))
    await asyncio.sleep(0)
    refused = await server.chat()
    assert refused.status == 503
    assert refused.headers[internal.DRAINING] == "1"
    assert int(refused.headers["retry-after"]) >= 1
    assert (await server.get("/ready")).status == 503
    assert (await server.get("/health")).status == 200
    assert not drain.done()
    gate.set()
    assert b'"finish_reason":"stop"' in (await running).body
    await drain


async def test_a_drain_that_takes_too_long_ends_streams_with_an_error(
    saying: Any, chat: Any
) -> None:
    """A10"""
    server = saying("x", script={**ENDLESS, "waits_after": 1, "gate": asyncio.Event()})
    streams = [asyncio.create_task(server.post(CHAT, chat(stream=True))) for _ in range(10)]
    while len(server.engine.running) < 10:
        await asyncio.sleep(0)
    await server.lifecycle.drain(0.01)
    for response in await asyncio.gather(*streams):
        assert b'data: {"error":' in response.body
        assert response.body.endswith(b"data: [DONE]\n\n")
    await server.until_idle()


async def test_a_loading_server_is_alive_and_says_how_far_it_is(saying: Any, chat: Any) -> None:
    server = saying("ok")
    server.lifecycle._served = None
    assert (await server.get("/health")).status == 200
    status = (await server.get("/status")).json()
    assert (status["phase"], status["percent"], status["ready"]) == ("loading weights", 40.0, False)
    for response in (
        await server.get("/v1/models"),
        await server.post(CHAT, chat()),
        await server.get("/health_generate"),
        await server.get("/ready"),
    ):
        assert response.status == 503
        assert response.json()["error"]["code"] == "service_unavailable"
        assert response.headers["retry-after"] == "3"


async def test_the_first_health_check_generates_and_only_then_is_it_ready(saying: Any) -> None:
    server = saying("ok")
    server.lifecycle.has_generated = False
    assert (await server.get("/ready")).status == 503
    assert (await server.get("/health_generate")).status == 200
    assert (await server.get("/ready")).status == 200
    await server.get("/health_generate")
    assert len(server.engine.requests) == 1


async def test_the_gateways_word_counts_only_beside_its_token(saying: Any, chat: Any) -> None:
    server = saying("ok", access=Access(api_key="k", internal_token="secret"))
    said = {
        internal.LANE: "batch",
        internal.SERVED_NAME: "team/model",
        internal.DEADLINE: "99",
        internal.PRIORITY: "7",
        internal.OWNER: "team",
    }
    key = {"authorization": "Bearer k"}
    response = await server.post(CHAT, chat(), {**said, **key, internal.TOKEN: "guess"})
    assert response.json()["model"] == "tiny"
    assert server.engine.requests[-1].lane == "interactive"
    assert server.engine.requests[-1].batch_priority == 0
    assert internal.USAGE not in response.headers
    response = await server.post(CHAT, chat(model="x"), {**said, internal.TOKEN: "secret"})
    assert response.json()["model"] == "team/model"
    assert server.engine.requests[-1].lane == "batch"
    assert server.engine.requests[-1].deadline == 99
    assert server.engine.requests[-1].batch_priority == 7
    assert server.engine.requests[-1].tenant == "team"
    usage = response.json()["usage"]
    assert response.headers[internal.USAGE] == f"{usage['prompt_tokens']},0,2"
    assert response.headers[internal.LOAD] == "0,0,0.000"


async def test_a_streams_usage_is_a_comment_just_before_done(saying: Any, chat: Any) -> None:
    server = saying("ok", access=Access(internal_token="secret"))
    response = await server.post(CHAT, chat(stream=True), {internal.TOKEN: "secret"})
    prompt = len(server.engine.requests[-1].prompt)
    assert response.body.endswith(f": {internal.USAGE} {prompt},0,2\n\ndata: [DONE]\n\n".encode())
    assert internal.LOAD in response.headers
