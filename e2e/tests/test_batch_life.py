"""A BatchJob's life: suspended, killed, without its operator, told to somebody, deleted."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from minio import Minio
from openai import OpenAI

from skirret_cli.command import main
from skirret_local import local
from skirret_local.installation import KubectlFailed, Site, until
from skirret_local.manifests import batch_job, chat_lines
from skirret_local.network import HOST

SECRET = "whsec_c2tpcnJldC1leGFtcGxlLWtleS0xMjM0NTY="


@pytest.fixture(scope="session")
def bucket() -> Minio:
    return local.s3()


@pytest.fixture
def submit(site: Site, model: str, bucket: Minio) -> Callable[..., str]:
    """Applies a BatchJob of so many lines; gives its name."""

    def start(name: str, lines: int, max_tokens: int = 8, **spec: Any) -> str:
        body = {"ignore_eos": True} if max_tokens > 8 else {}
        text = chat_lines(model, lines, max_tokens, **body).encode()
        bucket.put_object(site.namespace, f"in/{name}.jsonl", io.BytesIO(text), len(text))
        site.apply(batch_job(name, f"s3://{site.namespace}/in/{name}.jsonl", **spec))
        return name

    return start


def status(site: Site, name: str) -> dict[str, Any]:
    found: dict[str, Any] = site.get("batchjob", name).get("status", {})
    return found


def done(site: Site, name: str) -> int:
    return int(status(site, name).get("done", "0/0").split("/")[0])


def wait_complete(site: Site, name: str) -> dict[str, Any]:
    site.kubectl("wait", "--for=condition=Complete", f"batchjob/{name}", "--timeout=120s")
    return status(site, name)


def ids(client: OpenAI, ended: dict[str, Any]) -> list[str]:
    text = client.files.content(ended["outputFileId"]).text
    return [json.loads(line)["custom_id"] for line in text.splitlines()]


def running(site: Site, name: str) -> list[dict[str, Any]]:
    pods = site.pods(f"skirret.dev/batch={name}")
    return [pod for pod in pods if pod["status"]["phase"] == "Running"]


def test_a_suspended_job_stops_and_goes_on_where_it_was(
    site: Site, client: OpenAI, submit: Callable[..., str]
) -> None:
    name = submit("suspended", 60, max_tokens=24)
    until("the first lines are done", lambda: done(site, name), within=60)
    site.kubectl("patch", "batchjob", name, "--type=merge", '--patch={"spec":{"suspend":true}}')
    site.kubectl("wait", "--for=condition=Suspended", f"batchjob/{name}", "--timeout=20s")
    until("its pods are gone", lambda: not running(site, name), within=45)
    kept = done(site, name)
    assert "eta" not in status(site, name)["progress"]
    site.kubectl("patch", "batchjob", name, "--type=merge", '--patch={"spec":{"suspend":false}}')
    ended = wait_complete(site, name)
    assert ids(client, ended) == [f"line-{i}" for i in range(60)]
    assert 0 < kept < 60
    reasons = {
        event["reason"]
        for event in site.get("events", f"--field-selector=involvedObject.name={name}")["items"]
    }
    assert {"InProgress", "Suspended", "Completed"} <= reasons


def test_a_job_whose_worker_is_deleted_again_and_again_answers_each_line_once(
    site: Site,
    client: OpenAI,
    submit: Callable[..., str],
    figure: Callable[[str, float, float, str], None],
) -> None:
    name = submit("killed", 80, max_tokens=24)
    longest = 0.0
    for _ in range(2):
        (pod, *_) = until("a worker runs", lambda: running(site, name), within=60)
        time.sleep(random.uniform(0.5, 3))
        killed = time.monotonic()
        site.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
        gone = pod["metadata"]["uid"]

        def resumed(gone: str = gone) -> bool:
            others = [each for each in running(site, name) if each["metadata"]["uid"] != gone]
            return bool(others) or status(site, name).get("status") == "completed"

        until("another worker runs", resumed, within=30)
        longest = max(longest, time.monotonic() - killed)
    ended = wait_complete(site, name)
    assert ids(client, ended) == [f"line-{i}" for i in range(80)]
    assert ended["requestCounts"] == {"total": 80, "completed": 80, "failed": 0}
    figure("batch resumes after a kill", longest, 15, "s")


def test_a_batch_goes_on_without_its_operator(
    site: Site, client: OpenAI, submit: Callable[..., str]
) -> None:
    name = submit("alone", 30, max_tokens=16, parallelism=2)
    until("its workers run", lambda: len(running(site, name)) == 2, within=60)
    batch_id = status(site, name)["id"]
    site.kubectl("scale", "deployment", "skirret-operator", "--replicas=0")
    try:
        until(
            "the batch is completed",
            lambda: client.batches.retrieve(batch_id).status == "completed",
            within=120,
        )
    finally:
        site.kubectl("scale", "deployment", "skirret-operator", "--replicas=1")
    ended = wait_complete(site, name)
    assert ids(client, ended) == [f"line-{i}" for i in range(30)]


def test_a_batch_goes_on_while_the_api_server_is_away(
    site: Site, client: OpenAI, submit: Callable[..., str]
) -> None:
    name = submit("unseen", 60, max_tokens=24)
    until("the first lines are done", lambda: done(site, name), within=60)
    batch_id = status(site, name)["id"]
    (server,) = (
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if command(folder)[1:2] == [b"kube-apiserver"]
    )

    def answered() -> int:
        counts = client.batches.retrieve(batch_id).request_counts
        assert counts is not None
        return counts.completed

    os.kill(server, signal.SIGSTOP)
    try:
        before = answered()
        until("more lines are done", lambda: answered() > before, within=30)
    finally:
        os.kill(server, signal.SIGCONT)
    ended = wait_complete(site, name)
    assert ids(client, ended) == [f"line-{i}" for i in range(60)]


def command(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it ended
        return []


@pytest.fixture
def calls() -> Iterator[tuple[str, list[tuple[bytes, dict[str, str]]]]]:
    """The URL of a receiver that pods reach, and what it was told."""
    told: list[tuple[bytes, dict[str, str]]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.append((body, dict(self.headers.items())))
            self.send_response(503 if len(told) == 1 else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer((HOST, 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{HOST}:{server.server_port}/hook", told
    server.shutdown()
    server.server_close()


def test_the_end_is_told_by_a_signed_webhook(
    site: Site,
    client: OpenAI,
    submit: Callable[..., str],
    calls: tuple[str, list[tuple[bytes, dict[str, str]]]],
) -> None:
    url, told = calls
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "hook"},
        "stringData": {"key": SECRET},
    }
    site.apply(secret)
    notify = {"url": url, "secretRef": {"name": "hook"}}
    name = submit("told", 2, notify=notify, ttlSecondsAfterFinished=0)
    until("it is told twice, the first time in vain", lambda: len(told) == 2, within=90)
    body, headers = told[1]
    event = client.webhooks.unwrap(body, headers, secret=SECRET)
    assert event.type == "batch.completed"
    until("the object is gone", lambda: not site.find("batchjob", name), within=90)
    assert client.batches.retrieve(event.data.id).status == "completed"


def test_the_command_line_talks_to_the_gateway(
    site: Site, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(chat_lines("whatever", 5))
    url = f"--url={site.gateway()}/v1"
    assert main(["batch", "submit", str(path), f"--model={model}", "--wait", "--json", url]) == 0
    batch = json.loads(capsys.readouterr().out)
    assert main(["batch", "results", batch["id"], url]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["custom_id"] for row in rows] == [f"line-{i}" for i in range(5)]


def test_a_field_that_can_not_be_changed_says_so(site: Site, submit: Callable[..., str]) -> None:
    name = submit("fixed", 1)
    patch = '--patch={"spec":{"storeSecretRef":{"name":"other"}}}'
    with pytest.raises(KubectlFailed, match="storeSecretRef can't be changed"):
        site.kubectl("patch", "batchjob", name, "--type=merge", patch)
    with pytest.raises(KubectlFailed, match="write it as https://host/path"):
        submit("wrong", 1, notify={"url": "example.com"})
