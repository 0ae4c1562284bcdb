"""API keys: whose request it is, and who is not answered."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from skirret_api.tenants import read_keys
from skirret_gateway.gateway import Settings
from skirret_gateway.testing.running import CHAT, Running, Start, chat, mount_tenants
from skirret_gateway.testing.scripted import ScriptedServer

FORM = (
    b"--x\r\ncontent-disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
    b"--x\r\ncontent-disposition: form-data; name=file; filename=in.jsonl\r\n\r\n{}\r\n--x--\r\n"
)


def bearer(key: str) -> str:
    return f"Bearer {key}"


def write(folder: Path, name: str, key: str, namespace: str) -> None:
    entry = {"sha256": sha256(key.encode()).hexdigest(), "namespace": namespace}
    (folder / name).write_text(json.dumps(entry))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir()
    write(folder, "ann", "sk-key-of-ann-0123456789", "team")
    write(folder, "bob", "sk-key-of-bob-0123456789", "other")
    return folder


@pytest.fixture
async def gateway(start: Start, server: ScriptedServer, tmp_path: Path, keys: Path) -> Running:
    tenants = mount_tenants(tmp_path, "team", "other")
    settings = replace(Settings(), tenants=tenants, keys=keys)
    return await start({"m": [server.url]}, settings)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/v1/models/m"), ("GET", "/v1/files")],
)
async def test_nobody_is_answered_without_a_key(gateway: Running, method: str, path: str) -> None:
    body = chat() if method == "POST" else None
    for headers in ({}, {"authorization": bearer("sk-wrong-0123456789-abcd")}):
        answer = await gateway.ask(method, path, body, **headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert "0123456789" not in answer.error["message"]
    known = await gateway.ask(method, path, body, authorization=bearer("sk-key-of-ann-0123456789"))
    assert known.status == 200


async def test_probes_need_no_key(gateway: Running) -> None:
    assert (await gateway.ask("GET", "/health")).status == 200
    assert (await gateway.ask("GET", "/ready")).status == 200


async def test_another_namespaces_files_and_batches_are_not_there(gateway: Running) -> None:
    ann, bob = (bearer(f"sk-key-of-{name}-0123456789") for name in ("ann", "bob"))
    upload = await gateway.ask(
        "POST",
        "/v1/files",
        FORM,
        content_type="multipart/form-data; boundary=x",
        authorization=ann,
    )
    file_id = upload.json()["id"]
    wanted = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    batch = await gateway.ask("POST", "/v1/batches", wanted, authorization=ann)
    batch_id = batch.json()["id"]
    for method, path, status in (
        ("GET", f"/v1/files/{file_id}", 404),
        ("GET", f"/v1/files/{file_id}/content", 404),
        ("DELETE", f"/v1/files/{file_id}", 404),
        ("GET", f"/v1/batches/{batch_id}", 404),
        ("GET", f"/v1/batches/{batch_id}/output", 404),
        ("POST", f"/v1/batches/{batch_id}/cancel", 404),
    ):
        assert (await gateway.ask(method, path, authorization=bob)).status == status, path
    assert (await gateway.ask("POST", "/v1/batches", wanted, authorization=bob)).status == 400
    for path in ("/v1/files", "/v1/batches"):
        assert (await gateway.ask("GET", path, authorization=bob)).json()["data"] == []
    mine = await gateway.ask("GET", f"/v1/batches/{batch_id}", authorization=ann)
    assert mine.json()["status"] == "validating"


async def test_keys_are_read_again_and_a_bad_one_takes_none_away(
    gateway: Running, keys: Path
) -> None:
    async def status(name: str) -> int:
        key = bearer(f"sk-key-of-{name}-0123456789")
        return (await gateway.ask("GET", "/v1/files", authorization=key)).status

    async def until(name: str, expected: int) -> None:
        for _ in range(250):
            if await status(name) == expected:
                return
        raise AssertionError(f"{name} is answered {await status(name)}")

    write(keys, "eve", "sk-key-of-eve-0123456789", "team")
    (keys / "bob").unlink()
    await until("eve", 200)
    await until("bob", 401)
    (keys / "eve").write_text("no json")
    for _ in range(20):
        assert await status("eve") == 200


def test_a_file_that_is_no_key_is_named(keys: Path) -> None:
    (keys / "ann").write_text('{"sha256": "ABC", "namespace": "team"}')
    with pytest.raises(ValueError, match=r"keys/ann is no API key: sha256"):
        read_keys(keys)
