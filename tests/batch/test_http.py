"""Files and batches as clients see them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import openai
import pytest
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, OpenAI
from openai.types import Batch, FileDeleted, FileObject

from skirret_api.errors import Unauthorized
from skirret_api.openai import BatchError, BatchStatus
from skirret_api.tenants import FolderStore
from skirret_batch import record as records
from skirret_batch.embedded import Runner
from skirret_batch.folder import Folder
from skirret_batch.http import files_and_batches
from skirret_batch.receive import Limits
from skirret_batch.store import BatchStore, StoreRefused
from skirret_batch.testing import FakeCompletions, Wrapped, chat_line
from skirret_batch.worker import WorkerSettings

LINES = chat_line("a", "one") + chat_line("b", "two")
LIMITS = Limits(batch_file=100_000, file=300_000, part=64 << 10)


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@dataclass(frozen=True, slots=True)
class Service:
    """The application, its store, and two ways to ask it."""

    app: FastAPI
    store: Folder
    clock: Clock
    http: httpx2.AsyncClient
    client: AsyncOpenAI
    started: list[str]

    async def upload(self, data: bytes = LINES, name: str = "in.jsonl", **options: Any) -> str:
        purpose = options.pop("purpose", "batch")
        file = await self.client.files.create(file=(name, data), purpose=purpose, **options)
        return file.id

    async def create(self, **changes: Any) -> httpx2.Response:
        body = {
            "input_file_id": await self.upload(),
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            **changes,
        }
        body = {name: value for name, value in body.items() if value is not ...}
        return await self.http.post("/v1/batches", json=body)


@pytest.fixture
async def service(folder: Folder) -> AsyncIterator[Service]:
    clock, started = Clock(), []

    async def start(store: BatchStore, batch_id: str) -> None:
        started.append(batch_id)

    app = files_and_batches(lambda scope: folder, clock=clock, limits=LIMITS, started=start)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        client = AsyncOpenAI(
            api_key="k", base_url="http://test/v1", http_client=http, max_retries=0
        )
        yield Service(app, folder, clock, http, client, started)


def refused(response: httpx2.Response) -> tuple[int, str | None, str | None]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return response.status_code, error["param"], error["code"]


# files


async def test_an_uploaded_file_is_there_at_once(service: Service) -> None:
    file = await service.client.files.create(file=("dir/in.jsonl", LINES), purpose="batch")
    assert file.id.startswith("file-")
    assert (file.bytes, file.filename, file.status) == (len(LINES), "in.jsonl", "processed")
    assert file.expires_at == file.created_at + 30 * 86_400
    assert await service.client.files.retrieve(file.id) == file
    content = await service.client.files.content(file.id)
    assert content.content == LINES
    assert content.response.headers["content-length"] == str(len(LINES))
    assert 'filename="in.jsonl"' in content.response.headers["content-disposition"]


async def test_a_file_larger_than_a_part_is_streamed_into_parts(service: Service) -> None:
    app = files_and_batches(
        lambda scope: service.store, limits=replace(LIMITS, file=30 << 20, part=5 << 20)
    )
    data = bytes(range(256)) * (12 << 12)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post(
            "/v1/files", data={"purpose": "user_data"}, files={"file": ("x.bin", data)}
        )
        file_id = answer.json()["id"]
        assert (await http.get(f"/v1/files/{file_id}/content")).content == data
    assert [pending async for pending in service.store.uploads("")] == []


async def test_the_order_of_a_forms_fields_does_not_matter(service: Service) -> None:
    form: list[tuple[str, Any]] = [("file", ("in.jsonl", LINES)), ("purpose", (None, "batch"))]
    answer = await service.http.post("/v1/files", files=form)
    assert answer.json()["purpose"] == "batch"
    form[0] = ("file", ("in.txt", LINES))
    assert refused(await service.http.post("/v1/files", files=form)) == (400, "file", None)
    assert len([entry async for entry in service.store.list("files/")]) == 2


@pytest.mark.parametrize(
    ("name", "data", "form", "expected"),
    [
        ("in.txt", LINES, {"purpose": "batch"}, (400, "file", None)),
        ("in.jsonl", b"", {"purpose": "batch"}, (400, "file", "empty_file")),
        ("in.jsonl", LINES, {"purpose": "foo"}, (400, "purpose", "invalid_value")),
        ("in.jsonl", LINES, {"purpose": "batch_output"}, (400, "purpose", "invalid_value")),
        ("in.jsonl", LINES, {}, (400, "purpose", "missing_required_parameter")),
        (None, b"", {"purpose": "batch"}, (400, "file", "missing_required_parameter")),
        ("in.jsonl", LINES, {"purpose": "batch", "x": "1"}, (400, "x", "unknown_parameter")),
        ("in.jsonl", b"x" * 100_001, {"purpose": "batch"}, (413, "file", "request_too_large")),
        ("in.bin", b"x" * 300_001, {"purpose": "vision"}, (413, "file", "request_too_large")),
        (
            "in.jsonl",
            LINES,
            {
                "purpose": "batch",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": "9",
            },
            (400, "expires_after.seconds", "invalid_value"),
        ),
        (
            "in.jsonl",
            LINES,
            {"purpose": "batch", "expires_after[seconds]": "7200"},
            (400, "expires_after.anchor", "invalid_value"),
        ),
    ],
)
async def test_an_upload_that_is_refused_leaves_nothing(
    service: Service,
    name: str | None,
    data: bytes,
    form: dict[str, str],
    expected: tuple[int, str, str | None],
) -> None:
    parts: list[tuple[str, Any]] = [(key, (None, value)) for key, value in form.items()]
    if name is not None:
        parts.append(("file", (name, data)))
    answer = await service.http.post("/v1/files", files=parts)
    assert refused(answer) == expected
    assert (answer.headers.get("connection") == "close") == (answer.status_code == 413)
    assert [entry async for entry in service.store.list("files/")] == []
    assert [pending async for pending in service.store.uploads("")] == []


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"no boundary here"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\nx',
        ),
    ],
)
async def test_a_body_that_is_no_form_is_refused(
    service: Service, content_type: str, body: bytes
) -> None:
    answer = await service.http.post(
        "/v1/files", content=body, headers={"content-type": content_type}
    )
    assert answer.status_code == 400
    refused(answer)
    assert [entry async for entry in service.store.list("files/")] == []


@pytest.mark.parametrize(
    ("header", "status", "span"),
    [
        ("bytes=0-9", 206, (0, 10)),
        ("bytes=10-", 206, (10, None)),
        ("bytes=-7", 206, (-7, None)),
        ("bytes=5-999999", 206, (5, None)),
        ("bytes=0-999999", 206, (0, None)),
        ("bytes=0-", 206, (0, None)),
        ("bytes=-999999", 206, (0, None)),
        ("bytes=0-0", 206, (0, 1)),
        ("BYTES= 1-2 ", 206, (1, 3)),
        ("bytes=0-" + "9" * 5000, 206, (0, None)),
        ("lines=1-2", 200, (0, None)),
        ("bytes=5-2", 200, (0, None)),
        ("bytes=0-0,3-4", 200, (0, None)),
        ("bytes=-", 200, (0, None)),
        ("bytes=a-b", 200, (0, None)),
        ("bytes=999999-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=" + "9" * 5000 + "-", 416, None),
    ],
)
async def test_a_range_of_a_file(
    service: Service, header: str, status: int, span: tuple[int, int | None] | None
) -> None:
    file_id = await service.upload()
    answer = await service.http.get(f"/v1/files/{file_id}/content", headers={"range": header})
    assert answer.status_code == status
    if span is not None:
        assert answer.content == LINES[slice(*span)]


async def test_a_range_of_another_version_is_none(service: Service) -> None:
    file_id = await service.upload()
    path = f"/v1/files/{file_id}/content"
    whole = await service.http.get(path)
    for validator, status in ((whole.headers["etag"], 206), ('"another"', 200)):
        headers = {"range": "bytes=1-2", "if-range": validator}
        assert (await service.http.get(path, headers=headers)).status_code == status


async def test_head_tells_what_get_would(service: Service) -> None:
    file_id = await service.upload()
    path = f"/v1/files/{file_id}/content"
    part = {"range": "bytes=0-4"}  # is for GET alone
    told, given = await service.http.head(path, headers=part), await service.http.get(path)
    assert (told.status_code, told.content) == (200, b"")
    assert told.headers == given.headers
    assert (await service.http.head("/v1/files/file-nothing/content")).status_code == 404


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ('filename="a b.jsonl"', "a b.jsonl"),
        ("filename=plain.jsonl", "plain.jsonl"),
        ('filename="C:\\\\dir\\\\a.jsonl"', "a.jsonl"),
        ('filename="../../etc/a.jsonl"', "a.jsonl"),
        ('filename="q\\"q.jsonl"', 'q"q.jsonl'),
        ('filename="日本.jsonl"', "日本.jsonl"),
        ("filename*=UTF-8''n%C3%A9e.jsonl", "née.jsonl"),
        ("filename=\"n.jsonl\"; filename*=utf-8'fr'n%C3%A9e.jsonl", "née.jsonl"),
        ("filename*=ISO-8859-1''n%E9e.jsonl", "née.jsonl"),
    ],
)
async def test_a_file_keeps_its_name(service: Service, disposition: str, filename: str) -> None:
    answer = await post_form(service, f'name="file"; {disposition}')
    file = answer.json()
    assert file["filename"] == filename
    content = await service.http.get(f"/v1/files/{file['id']}/content")
    header = content.headers["content-disposition"]
    assert header.isascii()
    assert header.endswith(f"filename*=UTF-8''{quote(filename, safe='')}")


@pytest.mark.parametrize(
    "disposition", ['name="file"', 'name="file"; filename=""', 'name="file"; filename="/"']
)
async def test_a_file_without_a_name_is_refused(service: Service, disposition: str) -> None:
    assert refused(await post_form(service, disposition, "user_data"))[:2] == (400, "file")


async def post_form(service: Service, disposition: str, purpose: str = "batch") -> httpx2.Response:
    part = "--b\r\ncontent-disposition: form-data; "
    body = f'{part}name="purpose"\r\n\r\n{purpose}\r\n{part}{disposition}\r\n\r\n'.encode()
    headers = {"content-type": "multipart/form-data; boundary=b"}
    return await service.http.post(
        "/v1/files", content=body + LINES + b"\r\n--b--\r\n", headers=headers
    )


@pytest.mark.parametrize("twice", ["purpose", "file"])
async def test_a_form_says_everything_once(service: Service, twice: str) -> None:
    form: list[tuple[str, Any]] = [("purpose", (None, "batch")), ("file", ("a.jsonl", LINES))]
    form += [part for part in form if part[0] == twice]
    assert refused(await service.http.post("/v1/files", files=form)) == (400, twice, None)
    assert [entry async for entry in service.store.list("files/")] == []


@pytest.mark.parametrize(
    ("seconds", "status"),
    [("3600", 200), ("2592000", 200), ("3599", 400), ("2592001", 400), ("3600.0", 400)]
    + [("-3600", 400), ("", 400), ("٣٦٠٠", 400)],
)
async def test_a_file_lives_from_an_hour_to_thirty_days(
    service: Service, seconds: str, status: int
) -> None:
    form = {
        "purpose": "batch",
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": seconds,
    }
    answer = await service.http.post("/v1/files", files={"file": ("a.jsonl", LINES)}, data=form)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["expires_at"] == answer.json()["created_at"] + int(seconds)


async def test_a_file_expires_at_its_second(service: Service) -> None:
    file_id = await service.upload()
    file = await service.client.files.retrieve(file_id)
    assert file.expires_at is not None
    for moment, status in ((file.expires_at - 60, 200), (file.expires_at + 1, 404)):
        service.clock.ahead = moment - time.time()
        for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
            assert (await service.http.get(path)).status_code == status
    assert (await service.http.get("/v1/files")).json()["data"] == []


async def test_a_deleted_file_is_gone(service: Service) -> None:
    file_id = await service.upload()
    deleted = await service.client.files.delete(file_id)
    assert (deleted.id, deleted.deleted) == (file_id, True)
    for method, path in (("DELETE", ""), ("GET", ""), ("GET", "/content")):
        answer = await service.http.request(method, f"/v1/files/{file_id}{path}")
        assert refused(answer) == (404, "id", None)
    assert [entry async for entry in service.store.list("files/")] == []


async def test_an_expired_file_is_gone_too(service: Service) -> None:
    file_id = await service.upload(expires_after={"anchor": "created_at", "seconds": 3600})
    service.clock.ahead = 3601
    assert refused(await service.http.get(f"/v1/files/{file_id}")) == (404, "id", None)
    assert (await service.http.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize("file_id", ["%2e%2e", "%2e", "a%2Fb", "..%2Fbatches", "x" * 200, "%00"])
async def test_an_id_is_never_a_path(service: Service, file_id: str) -> None:
    for path in (f"/v1/files/{file_id}/content", f"/v1/batches/{file_id}"):
        answer = await service.http.get(httpx2.URL(f"http://test{path}"))
        assert answer.status_code == 404
        refused(answer)


async def test_lists_of_files_come_in_pages_that_end(service: Service) -> None:
    ids = []
    for n in range(7):
        ids.append(await service.upload(purpose="user_data" if n % 2 else "batch"))
        await asyncio.sleep(0.002)
    newest = [file.id async for file in service.client.files.list(limit=3)]
    assert newest == ids[::-1]
    oldest = [file.id async for file in service.client.files.list(limit=3, order="asc")]
    assert oldest == ids
    some = [file.id async for file in service.client.files.list(limit=2, purpose="user_data")]
    assert some == ids[5::-2]


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=10001", "limit=x", "order=up"])
async def test_a_list_refuses_what_it_can_not_do(service: Service, query: str) -> None:
    answer = await service.http.get(f"/v1/files?{query}")
    assert refused(answer)[:2] == (400, query.partition("=")[0])


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_a_list_refuses_an_unknown_cursor(service: Service, path: str) -> None:
    for after in ("nothing", "../x", "%00"):
        assert refused(await service.http.get(f"{path}?after={after}")) == (400, "after", None)


# batches


async def test_a_new_batch_is_validating_and_somebody_is_told(service: Service) -> None:
    file_id = await service.upload()
    batch = await service.client.batches.create(
        input_file_id=file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"team": "red"},
    )
    assert batch.id.startswith("batch_")
    assert (batch.status, batch.metadata) == ("validating", {"team": "red"})
    assert batch.request_counts is not None
    assert batch.request_counts.total == 0
    assert batch.expires_at == batch.created_at + 86_400
    assert batch.output_file_id is None
    assert service.started == [batch.id]
    assert await service.client.batches.retrieve(batch.id) == batch
    assert [entry.key async for entry in service.store.list("live/")] == [f"live/{batch.id}"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"input_file_id": ...}, ("input_file_id", "missing_required_parameter")),
        ({"endpoint": ...}, ("endpoint", "missing_required_parameter")),
        ({"completion_window": None}, ("completion_window", "missing_required_parameter")),
        ({"input_file_id": "file-nothing"}, ("input_file_id", None)),
        ({"input_file_id": "../x"}, ("input_file_id", None)),
        ({"input_file_id": 3}, ("input_file_id", "invalid_type")),
        ({"endpoint": "/v1/embeddings"}, ("endpoint", "invalid_value")),
        ({"completion_window": "1y"}, ("completion_window", "invalid_value")),
        (
            {"metadata": {str(n): "" for n in range(17)}},
            ("metadata", "object_above_max_properties"),
        ),
        ({"metadata": {"a": "x" * 513}}, ("metadata", "string_above_max_length")),
        ({"metadata": {"a": 1}}, ("metadata.a", "invalid_type")),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
            ("output_expires_after.seconds", "invalid_value"),
        ),
        (
            {"output_expires_after": {"anchor": "now", "seconds": 3600}},
            ("output_expires_after.anchor", "invalid_value"),
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3600.5}},
            ("output_expires_after.seconds", "invalid_type"),
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3600, "x": 1}},
            ("output_expires_after.x", "unknown_parameter"),
        ),
        ({"output_expires_after": []}, ("output_expires_after", "invalid_type")),
        ({"completion_window": "0h"}, ("completion_window", "invalid_value")),
        ({"completion_window": "337h"}, ("completion_window", "invalid_value")),
        ({"completion_window": "24H"}, ("completion_window", "invalid_value")),
        ({"completion_window": 24}, ("completion_window", "invalid_type")),
        ({"endpoint": "/v1/chat/completions/"}, ("endpoint", "invalid_value")),
        ({"metadata": {"k" * 65: "x"}}, ("metadata", "string_above_max_length")),
        ({"metadata": []}, ("metadata", "invalid_type")),
        ({"colour": "red"}, ("colour", "unknown_parameter")),
    ],
)
async def test_a_bad_create_is_refused(
    service: Service, changes: dict[str, Any], expected: Any
) -> None:
    answer = await service.create(**changes)
    status, *rest = refused(answer)
    assert status == 400
    assert tuple(rest) == expected
    assert [entry async for entry in service.store.list("batches/")] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"completion_window": "1s"},
        {"completion_window": "14d"},
        {"completion_window": "336h"},
        {"metadata": {str(n): "x" for n in range(16)}},
        {"metadata": {"k" * 64: "v" * 512}},
        {"metadata": {"": ""}},
        {"metadata": None},
        {"output_expires_after": None},
        {"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
        {"output_expires_after": {"anchor": "created_at", "seconds": 2_592_000}},
        {"endpoint": "/completions"},
    ],
)
async def test_a_create_on_the_border_is_taken(service: Service, changes: dict[str, Any]) -> None:
    answer = await service.create(**changes)
    assert answer.status_code == 200
    assert answer.json()["metadata"] == changes.get("metadata")


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/vnd.api+json", 200),
        (None, 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
async def test_a_create_is_json(service: Service, content_type: str | None, status: int) -> None:
    body = {
        "input_file_id": await service.upload(),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    headers = {"content-type": content_type} if content_type else {}
    answer = await service.http.post("/v1/batches", content=json.dumps(body), headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"a":NaN}', b"[" * 5000])
async def test_a_create_that_is_no_json_object_is_refused(service: Service, body: bytes) -> None:
    assert refused(await service.http.post("/v1/batches", content=body))[0] == 400


async def test_a_file_for_something_else_is_no_input(service: Service) -> None:
    file_id = await service.upload(purpose="user_data")
    answer = await service.create(input_file_id=file_id)
    assert refused(answer) == (400, "input_file_id", None)


async def test_an_endpoint_is_known_without_its_version(service: Service) -> None:
    answer = await service.create(endpoint="/chat/completions")
    assert answer.json()["endpoint"] == "/v1/chat/completions"


async def test_one_key_is_one_create(service: Service) -> None:
    file_id = await service.upload()
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    headers = {"idempotency-key": "k1"}
    answers = await asyncio.gather(
        *(service.http.post("/v1/batches", json=body, headers=headers) for _ in range(5))
    )
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = await service.http.post("/v1/batches", json=body, headers={"idempotency-key": "k2"})
    assert other.json()["id"] != answers[0].json()["id"]
    changed = {**body, "completion_window": "1h"}
    answer = await service.http.post("/v1/batches", json=changed, headers=headers)
    assert refused(answer) == (400, None, "idempotency_key_reused")
    reordered = dict(reversed(body.items()))
    again = await service.http.post("/v1/batches", json=reordered, headers=headers)
    assert again.json()["id"] == answers[0].json()["id"]


async def test_a_create_sent_again_is_found_after_its_input_is_gone(service: Service) -> None:
    headers = {"idempotency-key": "k"}
    body = {
        "input_file_id": await service.upload(),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    first = await service.http.post("/v1/batches", json=body, headers=headers)
    await service.client.files.delete(body["input_file_id"])
    again = await service.http.post("/v1/batches", json=body, headers=headers)
    assert again.json() == first.json()


async def test_a_key_of_a_refused_create_may_be_used_for_a_better_one(service: Service) -> None:
    headers = {"idempotency-key": "k"}
    body = {
        "input_file_id": "file-nothing",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    assert (await service.http.post("/v1/batches", json=body, headers=headers)).status_code == 400
    body["input_file_id"] = await service.upload()
    assert (await service.http.post("/v1/batches", json=body, headers=headers)).status_code == 200


async def test_a_clients_retry_is_the_same_create_for_ten_minutes(service: Service) -> None:
    file_id = await service.upload()
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    retry = {"x-stainless-retry-count": "1"}
    first = (await service.http.post("/v1/batches", json=body)).json()["id"]
    again = (await service.http.post("/v1/batches", json=body, headers=retry)).json()["id"]
    second = (await service.http.post("/v1/batches", json=body)).json()["id"]
    service.clock.ahead = 700
    late = (await service.http.post("/v1/batches", json=body, headers=retry)).json()["id"]
    assert first == again
    assert len({first, second, late}) == 3


async def test_a_create_that_died_before_its_record_is_finished_by_its_retry(
    service: Service,
) -> None:
    async def fail(name: str, key: str) -> None:
        if key.startswith("live/"):
            raise StoreRefused("disk full")

    async def nothing(name: str, key: str) -> None:
        return

    file_id = await service.upload()
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    headers = {"idempotency-key": "k"}
    broken = files_and_batches(lambda scope: Wrapped(service.store, fail, nothing))
    transport = httpx2.ASGITransport(app=broken)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post("/v1/batches", json=body, headers=headers)
        assert refused(answer) == (503, None, "service_unavailable")
        assert "disk full" in answer.json()["error"]["message"]
    answer = await service.http.post("/v1/batches", json=body, headers=headers)
    assert answer.status_code == 200


async def test_a_cancel(service: Service) -> None:
    batch_id = (await service.create()).json()["id"]
    batch = await service.client.batches.cancel(batch_id)
    assert batch.status == "cancelling"
    assert batch.cancelling_at is not None
    assert await service.client.batches.cancel(batch_id) == batch


async def test_an_ended_batch_is_not_cancelled_and_not_asked_again(service: Service) -> None:
    batch_id = (await service.create()).json()["id"]
    await records.change(service.store, batch_id, lambda r: records.fail(r, [], time.time()))
    client = service.client.with_options(max_retries=2)
    with pytest.raises(openai.ConflictError) as error:
        await client.batches.cancel(batch_id)
    assert error.value.message.endswith("Cannot cancel a batch with status 'failed'.") or (
        "Cannot cancel a batch with status 'failed'." in error.value.message
    )
    assert error.value.response.headers["x-should-retry"] == "false"


async def test_unknown_batches_are_404(service: Service) -> None:
    for answer in (
        await service.http.get("/v1/batches/batch_x"),
        await service.http.post("/v1/batches/batch_x/cancel"),
    ):
        assert refused(answer) == (404, None, None)
        assert "No batch found with id 'batch_x'." in answer.json()["error"]["message"]


async def test_lists_of_batches_are_stable_while_new_ones_arrive(service: Service) -> None:
    ids = []
    for _ in range(25):
        ids.append((await service.create()).json()["id"])
        await asyncio.sleep(0.002)
    seen = []
    async for batch in service.client.batches.list(limit=10):
        seen.append(batch.id)
        if len(seen) == 5:
            await service.create()
    assert seen == ids[::-1]
    assert len((await service.http.get("/v1/batches")).json()["data"]) == 20
    for limit in (0, 101):
        answer = await service.http.get(f"/v1/batches?limit={limit}")
        assert refused(answer)[:2] == (400, "limit")


async def test_batches_are_listed_oldest_first_too(service: Service) -> None:
    ids = []
    for _ in range(4):
        ids.append((await service.create()).json()["id"])
        await asyncio.sleep(0.002)
    query = f"order=asc&limit=2&after={ids[0]}"
    page = (await service.http.get(f"/v1/batches?{query}")).json()
    assert [batch["id"] for batch in page["data"]] == ids[1:3]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[1], ids[2], True)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_the_last_page_says_so(service: Service, path: str) -> None:
    for _ in range(4):
        await service.create()
    items = [each["id"] for each in (await service.http.get(f"{path}?limit=4")).json()["data"]]
    assert (await service.http.get(f"{path}?limit=4")).json()["has_more"] is False
    assert (await service.http.get(f"{path}?limit=3")).json()["has_more"] is True
    last = (await service.http.get(f"{path}?after={items[-1]}")).json()
    assert last == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


STATES: dict[str, list[BatchStatus]] = {
    "validating": [],
    "in_progress": ["in_progress"],
    "finalizing": ["in_progress", "finalizing"],
    "cancelling": ["cancelling"],
    "cancelled": ["cancelling", "cancelled"],
    "completed": ["in_progress", "finalizing", "completed"],
    "failed": ["failed"],
    "expired": ["in_progress", "finalizing", "expired"],
}


@pytest.mark.parametrize("state", STATES)
async def test_a_cancel_in_each_state(service: Service, state: str) -> None:
    batch_id = (await service.create()).json()["id"]
    for status in STATES[state]:
        moved = partial(records.move, status=status, now=time.time())
        await records.change(service.store, batch_id, moved)
    before = (await service.http.get(f"/v1/batches/{batch_id}")).json()
    answer = await service.http.post(f"/v1/batches/{batch_id}/cancel")
    after = (await service.http.get(f"/v1/batches/{batch_id}")).json()
    if state in ("completed", "failed", "expired"):
        assert refused(answer) == (409, None, None)
        assert answer.headers["x-should-retry"] == "false"
        assert f"Cannot cancel a batch with status '{state}'." in answer.text
        assert after == before
    elif state in ("cancelling", "cancelled"):
        assert answer.json() == before == after
    else:
        assert answer.json() == after
        assert after["status"] == "cancelling"
        assert after["cancelling_at"] >= after["created_at"]


async def test_objects_are_what_the_official_types_say(service: Service) -> None:
    file_id = await service.upload()
    file = (await service.http.get(f"/v1/files/{file_id}")).json()
    assert not FileObject.model_validate(file, strict=True).model_extra
    gone = (await service.http.delete(f"/v1/files/{file_id}")).json()
    assert not FileDeleted.model_validate(gone, strict=True).model_extra
    batch = (await service.create(metadata={"a": "b"})).json()
    assert set(Batch.model_validate(batch, strict=True).model_extra or {}) == {"x_progress"}
    failed = await records.change(
        service.store,
        batch["id"],
        lambda it: records.fail(it, [BatchError(code="c", message="m", line=3)], time.time()),
    )
    known = Batch.model_validate(failed.batch.model_dump(), strict=True)
    assert known.errors is not None
    assert not known.errors.model_extra
    assert known.errors.data is not None
    assert known.errors.data[0].line == 3
    assert set(known.to_dict()) <= set(Batch.model_fields)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/files", "GET, HEAD, POST"),
        ("/v1/files/x", "DELETE, GET, HEAD"),
        ("/v1/files/x/content", "GET, HEAD"),
        ("/v1/batches", "GET, HEAD, POST"),
        ("/v1/batches/x/cancel", "POST"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    service: Service, path: str, allowed: str
) -> None:
    answer = await service.http.request("PATCH", path)
    assert refused(answer)[0] == 405
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/files/x/y/z", 404),
        ("PUT", "/v1/files", 405),
        ("DELETE", "/v1/batches", 405),
        ("GET", "/v1/batches/", 404),
    ],
)
async def test_no_route(service: Service, method: str, path: str, status: int) -> None:
    answer = await service.http.request(method, path)
    assert refused(answer)[0] == status
    assert ("allow" in answer.headers) == (status == 405)


async def test_the_host_decides_who_asks(folder: Folder) -> None:
    def nobody(scope: Any) -> BatchStore:
        raise Unauthorized("Incorrect API key provided.")

    transport = httpx2.ASGITransport(app=files_and_batches(nobody))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        assert refused(await http.get("/v1/files")) == (401, None, "invalid_api_key")


async def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    stores = {
        name: Folder(FolderStore(path=str(tmp_path / name)), durable=False) for name in ("a", "b")
    }
    app = files_and_batches(lambda scope: stores[dict(scope["headers"])[b"x-team"].decode()])
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        a, b = {"x-team": "a"}, {"x-team": "b"}
        form = {"file": ("in.jsonl", LINES)}
        upload = await http.post("/v1/files", files=form, data={"purpose": "batch"}, headers=a)
        file_id = upload.json()["id"]
        body = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        assert (await http.get(f"/v1/files/{file_id}", headers=b)).status_code == 404
        assert (await http.post("/v1/batches", json=body, headers=b)).status_code == 400
        batch_id = (await http.post("/v1/batches", json=body, headers=a)).json()["id"]
        assert (await http.get(f"/v1/batches/{batch_id}", headers=b)).status_code == 404
        assert (await http.get("/v1/batches", headers=b)).json()["data"] == []


async def test_a_fault_of_ours_is_an_envelope_without_a_traceback(folder: Folder) -> None:
    def broken(scope: Any) -> BatchStore:
        raise KeyError("secret")

    transport = httpx2.ASGITransport(app=files_and_batches(broken))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/v1/files", headers={"x-request-id": "req_1"})
    assert refused(answer) == (500, None, None)
    assert "secret" not in answer.text
    assert "req_1" in answer.text


# the whole of it, over loopback


@pytest.fixture
def served(folder: Folder, fast: WorkerSettings) -> Iterator[str]:
    """The base URL of a server with an embedded runner, in a thread of its own."""
    runner = Runner(folder, FakeCompletions(seconds=0.01), fast, look_every=0.1)
    app = files_and_batches(lambda scope: folder, started=runner.started)
    config = uvicorn.Config(app, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))

    async def serve() -> None:
        running = asyncio.create_task(runner.run())
        await server.serve(sockets=[listener])
        runner.stop()
        await running

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()
    listener.close()


def wait_for_end(client: OpenAI, batch_id: str) -> openai.types.Batch:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "cancelled", "expired"):
            return batch
        time.sleep(0.02)
    raise TimeoutError(batch.status)


def test_a_client_gets_every_line_answered(served: str) -> None:
    with OpenAI(api_key="k", base_url=served) as client:
        data = b"".join(chat_line(f"c{n}", f"t{n}") for n in range(50))
        file = client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        batch = wait_for_end(client, batch.id)
        assert batch.output_file_id is not None
        lines = client.files.content(batch.output_file_id).text.splitlines()
        answers = [json.loads(line) for line in lines]
        assert [answer["custom_id"] for answer in answers] == [f"c{n}" for n in range(50)]
        for answer in answers:
            body = answer["response"]["body"]
            openai.types.chat.ChatCompletion.model_validate(body, strict=True)
        listed = {each.id: each.purpose for each in client.files.list()}
        assert listed == {file.id: "batch", batch.output_file_id: "batch_output"}
        assert client.files.delete(batch.output_file_id).deleted


def test_a_file_too_large_is_told_so_and_not_cut_off(served: str) -> None:
    with OpenAI(api_key="k", base_url=served, max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as error:
            client.files.create(file=("in.jsonl", bytes(201_000_000)), purpose="batch")
        assert error.value.status_code == 413
        assert client.files.list().data == []
