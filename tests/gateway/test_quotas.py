"""Keys with limits, on real sockets: what is counted, what is refused and how it is told."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from skirret_api.errors import Overloaded, Unauthorized
from skirret_api.internal import GATEWAY_SERVICE
from skirret_gateway.caller import FREE_GUESSES, MOST_WAITING, Guesses, Tenants
from skirret_gateway.gateway import Settings
from skirret_gateway.request import Body, Budget, Request
from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import Answer
from skirret_gateway.testing.kubernetes import (
    EmulatedApiServer,
    endpoint,
    endpoint_slice,
    inference_model,
)
from skirret_gateway.testing.running import CHAT, Running, Start, chat, mount_tenants
from skirret_gateway.testing.scripted import DONE, ScriptedServer, event

COUNTED = ("x-skirret-usage", "100,60,20")


def secret(name: str) -> str:
    return f"sk-key-of-{name}-0123456789"


class Keys:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder

    def add(self, name: str, **limits: Any) -> None:
        digest = sha256(secret(name).encode()).hexdigest()
        text = json.dumps({"sha256": digest, "namespace": "team", **limits})
        (self.folder / name).write_text(text)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


@pytest.fixture
def settings(tmp_path: Path, keys: Keys) -> Settings:
    return replace(
        Settings(), tenants=mount_tenants(tmp_path, "team"), keys=keys.folder, unit="gateway-a"
    )


async def ask(gateway: Running, name: str, model: str = "m", **fields: Any) -> Answer:
    bearer = f"Bearer {secret(name)}"
    return await gateway.ask("POST", CHAT, chat(model, **fields), authorization=bearer)


async def usage(gateway: Running, name: str) -> Any:
    answer = await gateway.ask("GET", "/v1/usage", authorization=f"Bearer {secret(name)}")
    return answer.json()


async def test_requests_over_the_limit_are_refused_and_told_when_to_come_back(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann", requestsPerMinute=2)
    keys.add("bob")
    gateway = await start({"m": [server.url]}, settings)
    for left in ("1", "0"):
        answer = await ask(gateway, "ann")
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        assert answer.headers["x-ratelimit-remaining-requests"] == left
    refused = await ask(gateway, "ann")
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert 55 < int(refused.headers["retry-after"]) <= 60
    assert "x-ratelimit-limit-requests" not in (await ask(gateway, "bob")).headers
    page = (await gateway.ask("GET", "/metrics")).body.decode()
    assert 'skirret_gateway_requests_total{model="m",status="429"} 1.0' in page


async def test_tokens_are_counted_as_the_server_tells(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann", tokensPerMinute=1000)
    server.default = scripted.answer(scripted.COMPLETION, 200, COUNTED)
    gateway = await start({"m": [server.url]}, settings)
    first = await ask(gateway, "ann")
    assert "x-skirret-usage" not in first.headers
    answer = await ask(gateway, "ann")
    assert 800 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 1000 - 120
    told = await usage(gateway, "ann")
    assert told["total_tokens"] == 240
    assert told["data"] == [
        {
            "model": "m",
            "requests": 2,
            "prompt_tokens": 200,
            "cached_tokens": 120,
            "completion_tokens": 40,
        }
    ]
    page = (await gateway.ask("GET", "/metrics")).body.decode()
    assert 'skirret_gateway_tokens_total{key="team/ann",kind="completion",model="m"} 40.0' in page


@pytest.mark.parametrize(
    ("pieces", "end", "expected"),
    [
        ([event("a"), event("b"), b": x-skirret-usage 7,3,2\n\n" + DONE], b"0\r\n\r\n", (7, 3, 2)),
        ([event("a"), b": x-skirret-usage 7,3,2\n\n", DONE], b"0\r\n\r\n", (7, 3, 2)),
        ([event("a"), event("b"), event("c")], b"", (None, 0, 3)),  # cut: its events
        ([event("a"), event("b"), DONE], b"0\r\n\r\n", (None, 0, 2)),  # another's server
    ],
)
async def test_a_stream_counts_what_its_end_tells_or_else_its_events(
    start: Start,
    server: ScriptedServer,
    keys: Keys,
    settings: Settings,
    pieces: Sequence[bytes],
    end: bytes,
    expected: tuple[int | None, int, int],
) -> None:
    keys.add("ann")
    server.default = scripted.stream(*pieces, end=end)
    gateway = await start({"m": [server.url]}, settings)
    await ask(gateway, "ann", stream=True)
    (counted,) = (await usage(gateway, "ann"))["data"]
    prompt, cached, completion = expected
    assert counted["completion_tokens"] == completion
    assert counted["cached_tokens"] == cached
    guess = len(json.dumps(chat(stream=True))) // 4
    assert counted["prompt_tokens"] == (guess if prompt is None else prompt)


async def test_a_refused_request_uses_nothing(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann", tokensPerMinute=1000)
    server.default = scripted.answer({"error": {"message": "no"}}, 400)
    gateway = await start({"m": [server.url]}, settings)
    for _ in range(2):
        answer = await ask(gateway, "ann")
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 970
    assert (await usage(gateway, "ann"))["total_tokens"] == 0


async def test_streams_at_once_are_limited_and_an_end_makes_room(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann", streams=1)
    gate = asyncio.Event()
    server.script.append(scripted.gated(gate, scripted.stream(event("a"), DONE)))
    gateway = await start({"m": [server.url]}, settings)
    first = asyncio.ensure_future(ask(gateway, "ann", stream=True))
    await server.arrived(1)
    assert (await ask(gateway, "ann", stream=True)).status == 429
    assert (await ask(gateway, "ann")).status == 200
    gate.set()
    assert (await first).status == 200
    assert (await ask(gateway, "ann", stream=True)).status == 200


async def test_a_quota_of_the_day_is_that_of_all_gateways_and_survives_a_restart(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann", tokensPerDay=200)
    server.default = scripted.answer(scripted.COMPLETION, 200, COUNTED)
    first = await start({"m": [server.url]}, settings)
    while not first.gateway.has_read_usage:
        await asyncio.sleep(0.01)
    assert (await ask(first, "ann")).status == 200
    await first.gateway.stop()
    second = await start({"m": [server.url]}, replace(settings, unit="gateway-b"))
    while not second.gateway.has_read_usage:
        await asyncio.sleep(0.01)
    assert (await ask(second, "ann")).status == 200
    refused = await ask(second, "ann")
    assert (refused.status, refused.error["code"]) == (429, "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"


async def test_a_key_is_for_its_models(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann", models=["m"])
    gateway = await start({"m": [server.url], "n": [server.url]}, settings)
    assert (await ask(gateway, "ann", "m")).status == 200
    refused = await ask(gateway, "ann", "n")
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    bearer = f"Bearer {secret('ann')}"
    listed = await gateway.ask("GET", "/v1/models", authorization=bearer)
    assert [model["id"] for model in listed.json()["data"]] == ["m"]
    assert (await gateway.ask("GET", "/v1/models/n", authorization=bearer)).status == 404


async def test_an_expired_key_is_refused(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann", expires="2026-01-01T00:00:00Z")
    keys.add("bob", expires="2999-01-01T00:00:00Z")
    gateway = await start({"m": [server.url]}, settings)
    refused = await ask(gateway, "ann")
    assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
    assert "Expired" in refused.error["message"]
    assert (await ask(gateway, "bob")).status == 200


async def test_gateways_share_limits_as_they_come_and_go(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann", requestsPerMinute=100)
    async with EmulatedApiServer() as kubernetes:
        kubernetes.put("inferencemodels", inference_model("m", "team"))
        ready = endpoint_slice(
            "m-1", "m", endpoint("127.0.0.1"), namespace="team", port=server.port
        )
        kubernetes.put("endpointslices", ready)
        gateway = await start(
            settings=replace(
                settings,
                kubernetes=kubernetes.access,
                namespaces=("team",),
                release_namespace="skirret",
            )
        )

        async def limit(expected: str) -> None:
            async with asyncio.timeout(5):
                while True:
                    answer = await ask(gateway, "ann")
                    if answer.headers.get("x-ratelimit-limit-requests") == expected:
                        return
                    await asyncio.sleep(0.02)

        kubernetes.put("endpointslices", _gateways("gateway-a", "gateway-b"))
        await limit("50")
        kubernetes.put("endpointslices", _gateways("gateway-a"))
        await limit("100")


def _gateways(*pods: str) -> dict[str, Any]:
    item = endpoint_slice("g-1", "", namespace="skirret")
    item["metadata"]["labels"] = {"kubernetes.io/service-name": GATEWAY_SERVICE}
    item["endpoints"] = [
        {**endpoint("10.0.0.1"), "targetRef": {"kind": "Pod", "name": pod}} for pod in pods
    ]
    return item


async def test_a_few_wrong_keys_are_answered_at_once_and_more_slowly() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    guesses = Guesses(lambda: 0.0, sleep)
    for _ in range(FREE_GUESSES):
        await guesses.slow_down()
    assert not slept
    await guesses.slow_down()
    assert slept == [1.0]


async def test_guessing_delays_nobody_with_a_key_and_those_who_wait_are_bounded(keys: Keys) -> None:
    async def forever(seconds: float) -> None:
        await asyncio.Event().wait()

    keys.add("ann")
    tenants = Tenants(None, "team", keys.folder, sleep=forever)
    tenants.read()
    guesses = [
        asyncio.ensure_future(tenants.caller(asking(f"sk-guess-{number}"))) for number in range(300)
    ]
    await asyncio.wait(guesses, timeout=0.05)
    assert (await tenants.caller(asking(secret("ann")))).name == "ann"
    answered = [guess.exception() for guess in guesses if guess.done()]
    assert sum(isinstance(error, Unauthorized) for error in answered) == FREE_GUESSES
    assert sum(isinstance(error, Overloaded) for error in answered) == (
        300 - FREE_GUESSES - MOST_WAITING
    )
    for guess in guesses:
        guess.cancel()


def asking(key: str) -> Request:
    body = Body(Budget(0), lambda pause: None)
    return Request("GET", b"/v1/models", [(b"authorization", f"Bearer {key}".encode())], body)


async def test_each_request_is_one_line_without_its_content(
    start: Start, server: ScriptedServer, keys: Keys, settings: Settings
) -> None:
    keys.add("ann")
    out = io.StringIO()
    server.default = scripted.answer(scripted.COMPLETION, 200, COUNTED)
    gateway = await start({"m": [server.url]}, replace(settings, access=out))
    trace = "0af7651916cd43dd8448eb211c80319c"
    await gateway.ask(
        "POST",
        CHAT,
        chat(),
        authorization=f"Bearer {secret('ann')}",
        traceparent=f"00-{trace}-b7ad6b7169203331-01",
    )
    await gateway.ask("GET", "/health")
    await gateway.ask("POST", CHAT, chat(), authorization="Bearer sk-wrong-0123456789-abcd")
    await gateway.gateway.stop()
    answered, refused = map(json.loads, out.getvalue().splitlines())
    assert answered["trace"] == trace
    expected = {"status": 200, "key": "team/ann", "model": "m", "tokens": [100, 60, 20]}
    assert answered.items() >= expected.items()
    assert answered["server"] == f"127.0.0.1:{server.port}"
    assert (refused["status"], refused["error"]) == (401, "invalid_api_key")
    for hidden in ("Hello", "Paris", "0123456789"):
        assert hidden not in out.getvalue()
