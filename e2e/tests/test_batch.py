"""Batches, by the API and by kubectl: one line for every custom_id, in the order of the input."""

import io
import json
from typing import Any

import pytest
from minio import Minio
from openai import NotFoundError, OpenAI
from openai.types import Batch

from skirret_local import local
from skirret_local.installation import Site, until
from skirret_local.manifests import batch_job, chat_lines

ENDED = ("completed", "failed", "cancelled", "expired")


@pytest.fixture(scope="session")
def bucket() -> Minio:
    return local.s3()


def start(client: OpenAI, lines: str) -> Batch:
    file = client.files.create(file=("input.jsonl", lines.encode()), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


def ended(client: OpenAI, batch_id: str, within: float = 120) -> Batch:
    def look() -> Batch | None:
        batch = client.batches.retrieve(batch_id)
        return batch if batch.status in ENDED else None

    return until(f"batch {batch_id} ends", look, within)


def rows(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def test_twenty_lines_by_the_api_are_answered_once_each_in_order(
    client: OpenAI, model: str
) -> None:
    batch = ended(client, start(client, chat_lines(model, 20)).id)
    assert batch.status == "completed"
    assert [x["custom_id"] for x in rows(client, batch.output_file_id)] == [
        f"line-{i}" for i in range(20)
    ]
    assert batch.error_file_id is None
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed) == (20, 20)


def test_a_wrong_line_is_that_lines_error(client: OpenAI, model: str) -> None:
    lines = chat_lines(model, 3).splitlines()
    broken = json.loads(lines[1])
    broken["body"]["temperature"] = 5
    text = "\n".join([lines[0], json.dumps(broken), lines[2]])
    batch = ended(client, start(client, text).id)
    assert batch.status == "completed"
    assert [x["custom_id"] for x in rows(client, batch.output_file_id)] == ["line-0", "line-2"]
    (error,) = rows(client, batch.error_file_id)
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["param"] == "temperature"


def test_a_batch_made_by_the_api_is_a_batchjob_too(client: OpenAI, site: Site, model: str) -> None:
    batch = start(client, chat_lines(model, 2))
    name = batch.id.replace("_", "-")
    until("the BatchJob appears", lambda: site.find("batchjob", name), within=15)
    ended(client, batch.id)
    until(
        "the BatchJob is Complete",
        lambda: site.condition("batchjob", name, "Complete").get("status") == "True",
        within=15,
    )


def test_a_batchjob_with_an_s3_input_writes_its_answers(
    site: Site, model: str, bucket: Minio, client: OpenAI
) -> None:
    text = chat_lines(model, 20).encode()
    bucket.put_object(site.namespace, "in/questions.jsonl", io.BytesIO(text), len(text))
    site.apply(batch_job("by-kubectl", f"s3://{site.namespace}/in/questions.jsonl"))
    until(
        "the BatchJob is Complete",
        lambda: site.condition("batchjob", "by-kubectl", "Complete").get("status") == "True",
        within=120,
    )
    status = site.get("batchjob", "by-kubectl")["status"]
    assert [x["custom_id"] for x in rows(client, status["outputFileId"])] == [
        f"line-{i}" for i in range(20)
    ]
    table = site.kubectl("get", "batchjobs")
    assert "20/20" in table


def test_a_cancelled_batch_keeps_what_was_done(client: OpenAI, model: str) -> None:
    batch = start(client, chat_lines(model, 200, max_tokens=200, ignore_eos=True))
    until(
        "the first lines are done",
        lambda: client.batches.retrieve(batch.id).status == "in_progress",
        within=60,
    )
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = ended(client, batch.id, within=30)
    assert done.status == "cancelled"
    ids = [
        x["custom_id"]
        for file in (done.output_file_id, done.error_file_id)
        for x in rows(client, file)
    ]
    assert sorted(ids) == sorted(f"line-{i}" for i in range(200))


def test_deleting_a_batchjob_discards_its_batch(client: OpenAI, site: Site, model: str) -> None:
    batch = start(client, chat_lines(model, 200, max_tokens=200, ignore_eos=True))
    name = batch.id.replace("_", "-")
    until("the BatchJob appears", lambda: site.find("batchjob", name), within=15)
    site.kubectl("delete", "batchjob", name)
    done = ended(client, batch.id, within=30)
    assert (done.status, done.output_file_id) == ("cancelled", None)
    until("its pods are gone", lambda: not site.pods(f"skirret.dev/batch={name}"), within=45)


def test_files_are_gone_once_deleted(client: OpenAI, model: str) -> None:
    file = client.files.create(file=("x.jsonl", chat_lines(model, 1).encode()), purpose="batch")
    client.files.delete(file.id)
    with pytest.raises(NotFoundError):
        client.files.content(file.id)
