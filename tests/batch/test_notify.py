"""The end of a batch, told to a URL in OpenAI's form."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from aiohttp import web

from skirret_batch.folder import Folder
from skirret_batch.record import Record, cancel, move, new_record, start
from skirret_batch.testing import submit
from skirret_batch.worker.notify import Target, event, notify, read_key

SECRET = "whsec_" + b64encode(b"k" * 24).decode()


@dataclass(slots=True)
class Receiver:
    """A user's endpoint; `answers` are its statuses, the last one again and again."""

    url: str = ""
    answers: list[int] = field(default_factory=lambda: [200])
    calls: list[tuple[bytes, Mapping[str, str]]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.calls.append((await request.read(), dict(request.headers)))
        status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.Response(status=status, headers={"location": self.url})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/hook", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook?token=hidden"
    yield found
    await runner.cleanup()


def completed() -> Record:
    made = new_record("batch_1", now=100, endpoint="/v1/chat/completions", input_file_id="file-1")
    working = start(made, model="m", total=1, now=110)
    return move(move(working, "finalizing", 120), "completed", 130)


async def at_once(seconds: float) -> None:
    await asyncio.sleep(0)


def key(tmp_path: Path, text: str = SECRET) -> bytes:
    (tmp_path / "key").write_text(f"{text}\n")
    return read_key(tmp_path / "key")


async def test_the_official_client_unwraps_it(receiver: Receiver, tmp_path: Path) -> None:
    assert await notify(completed(), Target(receiver.url, key(tmp_path)))
    ((body, headers),) = receiver.calls
    client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
    unwrapped = client.webhooks.unwrap(body, headers)
    client.close()
    assert unwrapped.type == "batch.completed"
    assert unwrapped.data.id == "batch_1"
    assert unwrapped.created_at == 130


async def test_another_key_or_another_body_is_found_out(receiver: Receiver, tmp_path: Path) -> None:
    await notify(completed(), Target(receiver.url, key(tmp_path, "plain text")))
    ((body, headers),) = receiver.calls
    client = openai.OpenAI(api_key="none", webhook_secret="plain text")
    client.webhooks.verify_signature(body, headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body, headers, secret=SECRET)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body.replace(b"batch_1", b"batch_2"), headers)
    client.close()


async def test_every_end_has_its_own_type() -> None:
    cancelled = move(cancel(completed_not_yet(), 120), "cancelled", 125)
    assert json.loads(event(cancelled)[1])["type"] == "batch.cancelled"


def completed_not_yet() -> Record:
    return new_record("batch_1", now=100, endpoint="/v1/chat/completions", input_file_id="file-1")


async def test_a_receiver_that_fails_is_told_again_under_the_same_id(receiver: Receiver) -> None:
    receiver.answers = [500, 404, 302, 204]
    assert await notify(completed(), Target(receiver.url), sleep=at_once)
    ids = {headers["webhook-id"] for _, headers in receiver.calls}
    assert (len(receiver.calls), len(ids)) == (4, 1)


async def test_a_receiver_that_is_gone_is_left_alone(receiver: Receiver) -> None:
    receiver.answers = [410]
    assert not await notify(completed(), Target(receiver.url), sleep=at_once)
    assert len(receiver.calls) == 1


async def test_nobody_there_is_given_up_in_the_end_and_nothing_secret_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target("http://127.0.0.1:1/hook?token=hidden", key(tmp_path))
    assert not await notify(completed(), target, patience=0.5, sleep=at_once)
    assert "127.0.0.1 was not told: ClientConnectorError" in caplog.text
    assert "hidden" not in caplog.text


@pytest.mark.parametrize("text", ["", "whsec_not base64"])
def test_a_key_that_signs_nothing_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="key"):
        key(tmp_path, text)


def flags(tmp_path: Path, *extra: str) -> list[str]:
    """A worker on the folder's store; its gateway is not there."""
    store, token = tmp_path / "store.json", tmp_path / "token"
    store.write_text(json.dumps({"kind": "folder", "path": str(tmp_path / "store")}))
    token.write_text("tok\n")
    return [
        *(sys.executable, "-m", "skirret_batch.worker", "--gateway=http://127.0.0.1:1"),
        *(f"--store-file={store}", f"--token-file={token}", *extra),
    ]


async def test_the_worker_tells_the_end_and_the_next_one_tells_it_again(
    folder: Folder, tmp_path: Path, receiver: Receiver
) -> None:
    """The first may have been killed before it told."""
    batch_id = await submit(folder, b"{not json\n")
    (tmp_path / "key").write_text(SECRET)
    told = (f"--notify={receiver.url}", f"--notify-key-file={tmp_path / 'key'}")
    for slot in ("0", "0", "1"):
        command = flags(tmp_path, f"--batch={batch_id}", f"--slot={slot}", *told)
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == 0
    first, second = receiver.calls
    assert json.loads(first[0])["type"] == "batch.failed"
    assert first[1]["webhook-id"] == second[1]["webhook-id"]


async def test_a_folder_is_no_store_for_the_uris_of_a_user(folder: Folder, tmp_path: Path) -> None:
    """It would be one of the worker's pod, where the namespace's secrets are."""
    batch_id = await submit(folder, b"{not json\n")
    command = flags(tmp_path, f"--batch={batch_id}", f"--uris-store-file={tmp_path}/store.json")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stderr=pipe)
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert b"storeSecretRef: store.json must be of kind s3" in stderr
