"""In a cluster: tokens, lanes, owners, and what only the workers of batches may ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skirret_batch.completions import HttpCompletions, Load, Turn
from skirret_batch.testing import chat_line
from skirret_gateway.gateway import Settings
from skirret_gateway.testing import scripted
from skirret_gateway.testing.kubernetes import (
    EmulatedApiServer,
    endpoint,
    endpoint_slice,
    inference_model,
)
from skirret_gateway.testing.running import CHAT, Running, Start, chat, mount_tenants
from skirret_gateway.testing.scripted import ScriptedServer, Seen

WORKER = "Bearer token-of-team"


@pytest.fixture
def tenants(tmp_path: Path) -> Path:
    return mount_tenants(tmp_path, "default", "team")


@asynccontextmanager
async def cluster(start: Start, server: ScriptedServer, tenants: Path) -> AsyncIterator[Running]:
    """A model `m` in each namespace, both on the same scripted server."""
    async with EmulatedApiServer() as kubernetes:
        for namespace in ("default", "team"):
            kubernetes.put("inferencemodels", inference_model("m", namespace))
            ready = endpoint_slice(
                "m-1", "m", endpoint("127.0.0.1"), namespace=namespace, port=server.port
            )
            kubernetes.put("endpointslices", ready)
        settings = replace(
            Settings(),
            kubernetes=kubernetes.access,
            namespaces=("default", "team"),
            release_namespace="default",
            tenants=tenants,
        )
        gateway = await start(settings=settings)
        async with asyncio.timeout(5):
            while (await gateway.ask("GET", "/ready")).status != 200:
                await asyncio.sleep(0.01)
        yield gateway


@pytest.fixture
async def gateway(start: Start, server: ScriptedServer, tenants: Path) -> AsyncIterator[Running]:
    async with cluster(start, server, tenants) as running:
        yield running


def ours(seen: Seen) -> dict[str, str]:
    return {name[10:]: value for name, value in seen.headers if name.startswith("x-skirret-")}


async def test_the_server_is_told_who_asks_with_the_token_of_its_namespace(
    gateway: Running, server: ScriptedServer
) -> None:
    await gateway.chat("m")
    await gateway.chat("team/m")
    assert [ours(seen) for seen in server.seen] == [
        {
            "token": "token-of-default",
            "lane": "interactive",
            "owner": "default",
            "served-name": "m",
        },
        {
            "token": "token-of-team",
            "lane": "interactive",
            "owner": "default",
            "served-name": "team/m",
        },
    ]


async def test_a_client_can_not_speak_for_us(gateway: Running, server: ScriptedServer) -> None:
    await gateway.ask(
        "POST",
        CHAT,
        chat(),
        x_skirret_token="guess",
        x_skirret_lane="interactive",
        x_skirret_owner="root",
        x_skirret_deadline="1",
        x_skirret_priority="100",
        x_skirret_group="x",
        x_skirret_blocks="x",
    )
    assert ours(server.seen[0]) == {
        "token": "token-of-default",
        "lane": "interactive",
        "owner": "default",
        "served-name": "m",
    }


async def test_keys_of_clients_stay_at_the_gateway(
    gateway: Running, server: ScriptedServer
) -> None:
    for key in ("Bearer sk-mine", WORKER):
        await gateway.ask("POST", CHAT, chat(), authorization=key)
    assert [seen.header("authorization") for seen in server.seen] == [None, None]


async def test_flexible_requests_go_to_the_batch_lane(
    gateway: Running, server: ScriptedServer
) -> None:
    await gateway.chat(service_tier="flex")
    assert ours(server.seen[0])["lane"] == "batch"


async def test_a_worker_asks_for_its_namespace_in_the_batch_lane(
    gateway: Running, server: ScriptedServer
) -> None:
    await gateway.ask("POST", CHAT, chat(), authorization=WORKER, x_skirret_deadline="1800000000")
    sent = ours(server.seen[0])
    assert sent["token"] == "token-of-team"
    assert (sent["lane"], sent["owner"], sent["deadline"]) == ("batch", "team", "1800000000")


async def test_a_worker_hears_how_busy_the_server_is(
    gateway: Running, server: ScriptedServer
) -> None:
    server.default = scripted.answer({}, 200, ("x-skirret-load", "1,0,0.5"))
    told = await gateway.ask("POST", CHAT, chat(), authorization=WORKER)
    assert told.headers["x-skirret-load"] == "1,0,0.5"
    assert "x-skirret-load" not in (await gateway.chat()).headers


async def test_all_names_of_a_model_have_one_root(gateway: Running) -> None:
    for name in ("m", "default%2Fm"):
        assert (await gateway.ask("GET", f"/v1/models/{name}")).json()["root"] == "default/m"


@pytest.mark.parametrize(("method", "path"), [("GET", "/get_model_info"), ("POST", "/tokenize")])
async def test_a_worker_asks_a_server_of_its_model_directly(
    gateway: Running, server: ScriptedServer, method: str, path: str
) -> None:
    body = {"text": "x"} if method == "POST" else None
    answer = await gateway.ask(method, f"{path}?model=m", body, authorization=WORKER)
    assert answer.status == 200
    assert (server.seen[0].method, server.seen[0].target) == (method, f"{path}?model=m")
    assert ours(server.seen[0])["token"] == "token-of-team"


async def test_a_head_is_asked_for_as_a_get_and_has_no_body(
    gateway: Running, server: ScriptedServer
) -> None:
    async with asyncio.timeout(5):
        answer = await gateway.ask("HEAD", "/get_model_info?model=m", authorization=WORKER)
    assert (answer.status, answer.body) == (200, b"")
    assert server.seen[0].method == "GET"


async def test_the_workers_own_client_gets_its_answers(
    gateway: Running, server: ScriptedServer
) -> None:
    server.default = scripted.answer({"id": "x"}, 200, ("x-skirret-load", "1,0,0.5"))
    client = HttpCompletions(f"http://127.0.0.1:{gateway.port}", "token-of-team", timeout=5)
    answer = await client.complete(CHAT, json.dumps(chat()).encode(), Turn(1_800_000_000, 7))
    assert (answer.status, answer.body) == (200, b'{"id": "x"}')
    assert answer.load == Load(1, 0, 0.5)
    sent = ours(server.seen[0])
    assert (sent["lane"], sent["deadline"], sent["priority"]) == ("batch", "1800000000", "7")
    assert await client.model("m") == await client.model("team/m") == "team/m"
    assert await client.model("nope") is None
    await client.close()


@pytest.mark.parametrize("key", [None, "Bearer sk-other", "Bearer ", "Basic token-of-team"])
async def test_nobody_else_does(gateway: Running, server: ScriptedServer, key: str | None) -> None:
    headers = {} if key is None else {"authorization": key}
    answer = await gateway.ask("GET", "/get_model_info?model=m", None, **headers)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert not server.seen


async def test_a_worker_must_name_the_model(gateway: Running) -> None:
    answer = await gateway.ask("GET", "/get_model_info", authorization=WORKER)
    assert (answer.status, answer.error["param"]) == (400, "model")


async def test_a_new_token_is_read_while_it_runs(
    gateway: Running, server: ScriptedServer, tenants: Path
) -> None:
    (tenants / "team.token").write_text("token-that-is-new")
    async with asyncio.timeout(5):
        while (await ask_as(gateway, "token-that-is-new")).status != 200:
            await asyncio.sleep(0.05)
    assert (await ask_as(gateway, "token-of-team")).status == 401


async def ask_as(gateway: Running, token: str) -> Any:
    path = "/get_model_info?model=m"
    return await gateway.ask("GET", path, authorization=f"Bearer {token}")


async def test_a_gateway_that_knows_nothing_yet_asks_for_patience(
    start: Start, tenants: Path
) -> None:
    async with EmulatedApiServer() as kubernetes:
        kubernetes.failures = [503] * 1000
        settings = replace(
            Settings(), kubernetes=kubernetes.access, namespaces=("default",), tenants=tenants
        )
        gateway = await start(settings=settings)
        assert (await gateway.ask("GET", "/health")).status == 200
        assert (await gateway.ask("GET", "/ready")).status == 503
        assert (await gateway.chat()).status == 503
        assert (await gateway.ask("GET", "/v1/models")).status == 503


def form(content: bytes, purpose: str = "batch") -> tuple[bytes, str]:
    body = (
        b"--x\r\ncontent-disposition: form-data; name=purpose\r\n\r\n%b\r\n"
        b"--x\r\ncontent-disposition: form-data; name=file; filename=in.jsonl\r\n\r\n%b\r\n"
        b"--x--\r\n"
    ) % (purpose.encode(), content)
    return body, "multipart/form-data; boundary=x"


async def upload(gateway: Running, content: bytes, **headers: str) -> str:
    body, kind = form(content)
    answer = await gateway.ask("POST", "/v1/files", body, content_type=kind, **headers)
    assert answer.status == 200, answer.body
    file_id: str = answer.json()["id"]
    return file_id


async def test_a_file_comes_back_as_it_was_sent(gateway: Running) -> None:
    content = bytes(range(256)) * 4096
    file_id = await upload(gateway, content)
    answer = await gateway.ask("GET", f"/v1/files/{file_id}/content")
    assert answer.body == content
    assert answer.headers["x-request-id"].startswith("req_")


async def test_files_belong_to_the_namespace_of_their_key(gateway: Running) -> None:
    file_id = await upload(gateway, b"{}", authorization=WORKER)
    path = f"/v1/files/{file_id}"
    assert (await gateway.ask("GET", path, authorization=WORKER)).status == 200
    stranger = await gateway.ask("GET", path)
    assert (stranger.status, stranger.error["type"]) == (404, "invalid_request_error")


async def test_a_batch_is_made_listed_and_cancelled(gateway: Running) -> None:
    file_id = await upload(gateway, b"{}")
    wanted = {
        "input_file_id": file_id,
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    batch = (await gateway.ask("POST", "/v1/batches", wanted)).json()
    assert batch["status"] == "validating"
    listed = (await gateway.ask("GET", "/v1/batches")).json()["data"]
    assert [each["id"] for each in listed] == [batch["id"]]
    cancelled = await gateway.ask("POST", f"/v1/batches/{batch['id']}/cancel")
    assert cancelled.json()["status"] == "cancelling"


async def dry_run(gateway: Running, content: bytes) -> Any:
    wanted = {
        "input_file_id": await upload(gateway, content),
        "endpoint": CHAT,
        "completion_window": "24h",
    }
    return (await gateway.ask("POST", "/v1/batches?dry_run=true", wanted)).json()


async def test_a_dry_run_has_its_tokens_counted_by_a_server(
    gateway: Running, server: ScriptedServer
) -> None:
    server.default = scripted.answer({"tokens": [1, 2, 3], "count": 3, "max_model_len": 9})
    told = await dry_run(gateway, chat_line("a") + chat_line("b"))
    assert (told["usage"], told["estimated"]) == ({"input_tokens": 6}, False)
    assert {(seen.method, seen.target) for seen in server.seen} == {("POST", "/tokenize")}
    assert ours(server.seen[0])["token"] == "token-of-default"


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_a_dry_run_is_estimated_where_no_server_counts(
    gateway: Running, server: ScriptedServer, status: int
) -> None:
    server.default = scripted.answer({}, status)
    told = await dry_run(gateway, chat_line("a", "x" * 400))
    assert told["estimated"] is True
    assert 100 <= told["usage"]["input_tokens"] < 120


async def test_a_dry_run_knows_no_model_of_another_namespace(gateway: Running) -> None:
    told = await dry_run(gateway, chat_line("a", model="nobody/m"))
    assert [each["code"] for each in told["errors"]["data"]] == ["model_not_found"]


@pytest.mark.parametrize(("method", "status"), [("PATCH", 405), ("PUT", 405)])
async def test_a_wrong_method_on_files_is_an_envelope(
    gateway: Running, method: str, status: int
) -> None:
    answer = await gateway.ask(method, "/v1/files")
    assert (answer.status, answer.error["type"]) == (status, "invalid_request_error")
    assert "allow" in answer.headers


async def test_a_namespace_without_a_store_is_told_so(
    start: Start, server: ScriptedServer, tenants: Path
) -> None:
    settings = replace(Settings(), tenants=tenants, release_namespace="elsewhere")
    gateway = await start({}, settings)
    answer = await gateway.ask("GET", "/v1/files")
    assert answer.status == 404
    assert "elsewhere" in answer.error["message"]


async def test_an_upload_that_breaks_off_leaves_no_file(gateway: Running) -> None:
    body, kind = form(b"x" * 100_000)
    async with gateway.client() as client:
        head = f"POST /v1/files HTTP/1.1\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        await client.send(head.encode() + b"\r\n" + body[:-50])
        await asyncio.sleep(0.05)
    assert (await gateway.ask("GET", "/v1/files")).json()["data"] == []


async def test_what_ended_a_server_is_not_given_to_the_next_for_a_worker(
    gateway: Running, server: ScriptedServer
) -> None:
    server.default = scripted.cut
    answer = await gateway.ask("POST", CHAT, chat(), authorization=WORKER)
    assert answer.status == 502
    assert len(server.seen) == 1
