"""What a create would come to, asked before it is made."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from skirret_batch import record as records
from skirret_batch.folder import Folder
from skirret_batch.http import files_and_batches
from skirret_batch.plan import Body
from skirret_batch.receive import Limits
from skirret_batch.record import usage_of
from skirret_batch.testing import chat_line, last_message

NAMES = {"m": "team/m", "alias": "team/m", "other": "team/other"}


class Known:
    """Two models, of which a server counts a token for each letter of the last message."""

    is_there = False
    seconds = 0.0

    def model_id(self, name: str) -> str | None:
        return NAMES.get(name)

    async def tokens(self, asked: Body) -> int | None:
        await asyncio.sleep(self.seconds)
        return len(last_message(asked)) if self.is_there else None


@pytest.fixture
def models() -> Known:
    return Known()


@pytest.fixture
async def http(folder: Folder, models: Known) -> AsyncIterator[httpx2.AsyncClient]:
    app = files_and_batches(
        lambda scope: folder,
        limits=Limits(lines=4),
        models=lambda scope: models,
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


def text_line(custom_id: str, prompt: object) -> bytes:
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions"}
    return json.dumps({**request, "body": {"model": "m", "prompt": prompt}}).encode() + b"\n"


async def ask(
    http: httpx2.AsyncClient,
    *lines: bytes,
    dry_run: str = "true",
    endpoint: str = "/v1/chat/completions",
) -> Any:
    form = {"file": ("in.jsonl", b"".join(lines))}
    upload = await http.post("/v1/files", files=form, data={"purpose": "batch"})
    wanted = {
        "input_file_id": upload.json()["id"],
        "endpoint": endpoint,
        "completion_window": "24h",
    }
    return await http.post(f"/v1/batches?dry_run={dry_run}", json=wanted)


async def test_a_good_file_is_counted_and_nothing_is_made(http: httpx2.AsyncClient) -> None:
    answer = await ask(http, chat_line("a", "x" * 4000), b"\n", chat_line("b", model="alias"))
    assert answer.status_code == 200
    told = answer.json()
    assert (told["valid"], told["errors"], told["model"]) == (True, None, "m")
    assert told["request_counts"] == {"total": 2}
    assert 1000 <= told["usage"]["input_tokens"] < 1100
    assert (told["estimated"], told["estimated_seconds"]) == (True, None)
    assert (await http.get("/v1/batches")).json()["data"] == []


async def test_a_server_that_is_there_counts_the_tokens(
    http: httpx2.AsyncClient, models: Known
) -> None:
    models.is_there = True
    told = (await ask(http, chat_line("a", "x" * 4000), b"\n", chat_line("b", "y" * 37))).json()
    assert (told["usage"], told["estimated"]) == ({"input_tokens": 4037}, False)


async def test_prompts_that_are_tokens_need_no_server(http: httpx2.AsyncClient) -> None:
    prompts: list[object] = [[1, 2, 3], [[4], [5, 6]]]
    lines = [text_line(str(n), prompt) for n, prompt in enumerate(prompts)]
    told = (await ask(http, *lines, endpoint="/v1/completions")).json()
    assert (told["usage"], told["estimated"]) == ({"input_tokens": 6}, False)


async def test_what_takes_long_to_count_is_estimated_by_what_was_counted(
    http: httpx2.AsyncClient, models: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skirret_batch.dry_run._COUNTING", 0.15)
    monkeypatch.setattr("skirret_batch.dry_run._COUNTED_TOGETHER", 1)
    models.is_there, models.seconds = True, 0.1
    told = (await ask(http, *(chat_line(str(n), "x" * 4000) for n in range(3)))).json()
    assert told["estimated"] is True
    assert 11_950 <= told["usage"]["input_tokens"] <= 12_050


async def test_every_error_is_told_with_its_line(http: httpx2.AsyncClient) -> None:
    lines = [chat_line("a"), b"{\n", chat_line("a"), chat_line("b", model="none")]
    told = (await ask(http, *lines, chat_line("c", model="other"))).json()
    assert not told["valid"]
    errors = [(each["line"], each["code"]) for each in told["errors"]["data"]]
    assert errors == [
        (None, "too_many_tasks"),
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "model_not_found"),
        (5, "mismatched_model"),
    ]


async def test_the_time_is_that_of_the_last_batch_of_the_model(
    http: httpx2.AsyncClient, folder: Folder
) -> None:
    now = time.time()
    record = records.new_record(
        records.new_id("batch", now), now=now, endpoint="/v1/completions", input_file_id="f"
    )
    await records.create(folder, record)
    record = records.start(record, model="m", total=300, now=now)
    record = records.finalize(record, now + 99)
    ended = records.end(
        record,
        completed=300,
        failed=0,
        usage=usage_of(1, 0, 1, predicted=0),
        output_file_id="f",
        error_file_id=None,
        now=now + 99,
    )
    await records.change(folder, record.id, lambda before: ended)
    told = (await ask(http, chat_line("a"), chat_line("b"), chat_line("c"))).json()
    assert told["estimated_seconds"] == 1.0


async def test_a_dry_run_is_asked_for_in_words_we_know(http: httpx2.AsyncClient) -> None:
    answer = await ask(http, chat_line("a"), dry_run="maybe")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dry_run")
    made = await ask(http, chat_line("a"), dry_run="false")
    assert made.json()["object"] == "batch"
