"""Every door, and what it says to those at the wrong one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skirret_gateway.forward import ForwardSettings
from skirret_gateway.gateway import Settings
from skirret_gateway.testing.running import CHAT, Start, chat
from skirret_gateway.testing.scripted import ScriptedServer


async def test_every_model_is_listed_also_those_asleep(start: Start) -> None:
    gateway = await start({"a": ["http://127.0.0.1:1"], "org/b": []})
    answer = await gateway.ask("GET", "/v1/models")
    models = answer.json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["a", "org/b"]
    for model in models["data"]:
        assert model["object"] == "model"
        assert isinstance(model["created"], int)
        assert isinstance(model["owned_by"], str)


@pytest.mark.parametrize("path", ["/v1/models/org%2Fb", "/v1/models/org/b"])
async def test_a_model_is_retrieved_by_its_name(start: Start, path: str) -> None:
    gateway = await start({"org/b": []})
    assert (await gateway.ask("GET", path)).json()["id"] == "org/b"


async def test_an_unknown_model_is_not_found(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    for answer in (await gateway.ask("GET", "/v1/models/nope"), await gateway.chat("nope")):
        assert answer.status == 404
        assert answer.error == {
            "message": "The model `nope` does not exist or you do not have access to it.",
            "type": "invalid_request_error",
            "param": None,
            "code": "model_not_found",
        }


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models"])
async def test_open_routes_answer(start: Start, path: str) -> None:
    gateway = await start()
    assert (await gateway.ask("GET", path)).status == 200
    assert (await gateway.ask("HEAD", path)).status == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nope", "/V1/models", "/generate", "/v1/files"])
async def test_an_unknown_route_is_an_envelope(start: Start, path: str) -> None:
    gateway = await start()
    answer = await gateway.ask("POST", path, {})
    assert (answer.status, answer.error["type"]) == (404, "invalid_request_error")
    assert answer.error["message"] == f"Invalid URL (POST {path})"
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("DELETE", "/v1/models/m", "GET"),
        ("PUT", "/health", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(
    start: Start, method: str, path: str, allow: str
) -> None:
    gateway = await start({"m": []})
    answer = await gateway.ask(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"m"', b'{"model": "m"} x', b"\xff"])
async def test_what_is_no_json_object_is_refused(start: Start, body: bytes) -> None:
    gateway = await start({"m": []})
    answer = await gateway.ask("POST", CHAT, body)
    assert answer.status == 400
    assert answer.error["message"].startswith("We could not parse the JSON body")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messages": []}, "missing_required_parameter"),
        ({"model": None}, "missing_required_parameter"),
        ({"model": 7}, "invalid_type"),
        ({"model": ["m"]}, "invalid_type"),
    ],
)
async def test_a_request_must_name_its_model(start: Start, body: Any, code: str) -> None:
    gateway = await start({"m": []})
    answer = await gateway.ask("POST", CHAT, body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "model", code)


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "json"])
async def test_a_body_of_another_type_is_refused(start: Start, kind: str) -> None:
    gateway = await start({"m": []})
    answer = await gateway.ask("POST", CHAT, chat(), content_type=kind)
    assert answer.status == 415
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/Problem+JSON"])
async def test_a_body_of_json_by_any_name_is_read(
    start: Start, server: ScriptedServer, kind: str
) -> None:
    gateway = await start({"m": [server.url]})
    assert (await gateway.ask("POST", CHAT, chat(), content_type=kind)).status == 200


async def test_a_body_over_the_limit_is_refused(start: Start, server: ScriptedServer) -> None:
    settings = replace(Settings(), forward=ForwardSettings(body_bytes=1000))
    gateway = await start({"m": [server.url]}, settings)
    answer = await gateway.chat(user="x" * 1000)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert "1000" in answer.error["message"]
    assert not server.seen


async def test_made_up_names_leave_no_trace_in_the_metrics(start: Start) -> None:
    gateway = await start({"m": []})
    for number in range(20):
        await gateway.chat(f"made-up-{number}")
    assert b"made-up" not in (await gateway.ask("GET", "/metrics")).body


async def test_the_metrics_show_every_model(start: Start, server: ScriptedServer) -> None:
    gateway = await start({"m": [server.url]})
    await gateway.chat()
    page = (await gateway.ask("GET", "/metrics")).body.decode()
    assert 'skirret_gateway_replicas{model="m"} 1.0' in page
    assert 'skirret_gateway_request_seconds_count{model="m"} 1.0' in page


async def test_a_fault_of_ours_is_told_without_its_trace(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start({"m": []})

    def broken(*arguments: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(gateway.gateway.fleet, "find", broken)
    answer = await gateway.chat()
    assert answer.status == 500
    assert answer.headers["x-request-id"] in answer.error["message"]
    assert "secret" not in answer.error["message"]
