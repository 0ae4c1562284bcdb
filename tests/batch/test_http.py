"""Files and batches as clients see them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI, OpenAI

from skirret_api.errors import Unauthorized
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
        ("bytes=0-999999", 200, (0, None)),
        ("lines=1-2", 200, (0, None)),
        ("bytes=999999-", 416, None),
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
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, ...),
        ({"colour": "red"}, ("colour", "unknown_parameter")),
    ],
)
async def test_a_bad_create_is_refused(
    service: Service, changes: dict[str, Any], expected: Any
) -> None:
    answer = await service.create(**changes)
    status, *rest = refused(answer)
    assert status == 400
    assert expected is ... or tuple(rest) == expected
    assert [entry async for entry in service.store.list("batches/")] == []


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
