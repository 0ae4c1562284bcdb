"""The server as a process: a real socket, the official client, signals and the last log line."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import openai
import pytest

from skirret_api.internal import DRAINING, FATAL
from skirret_server.testing import tiny_model

PROGRAM = """
import sys, time
from pathlib import Path
from skirret_api.launch import from_flags
from skirret_server.load.errors import SourceNotFound
from skirret_server.serve import Loaded, serve
from skirret_server.testing import Script, TimedEngine

def load(settings, progress):
    progress.begin("loading weights", 100)
    if settings.model_path == "s3://nowhere/model":
        raise SourceNotFound("s3://nowhere/model: no such bucket")
    time.sleep(float(settings.random_seed or 0))
    endless = lambda request: Script(
        tokens=b"Hello there!" if request.sampling.max_tokens <= 100 else b"x" * 100000
    )
    return Loaded(Path(settings.model_path), TimedEngine(endless, 0.01))

sys.exit(serve(from_flags(sys.argv[1:]), load))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Process:
    def __init__(self, model: str, *flags: str) -> None:
        self.port = free_port()
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, model, f"--port={self.port}", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def get(self, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            return response.status, json.loads(body) if body else None
        finally:
            connection.close()

    def wait_for(self, path: str, status: int = 200, timeout: float = 20) -> Any:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                found, body = self.get(path)
                if found == status:
                    return body
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"{path} did not become {status}")

    @cached_property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0
        )

    def end(self) -> tuple[int, str]:
        self.popen.send_signal(signal.SIGTERM)
        _, stderr = self.popen.communicate(timeout=20)
        return self.popen.returncode, stderr


@contextmanager
def running(model: str, *flags: str) -> Iterator[Process]:
    process = Process(model, *flags)
    try:
        yield process
    finally:
        process.client.close()
        process.popen.kill()
        process.popen.wait()
        if process.popen.stderr:
            process.popen.stderr.close()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Process]:
    with running(str(folder), "--served-model-name", "tiny", "org/tiny") as process:
        process.wait_for("/ready")
        yield process


MESSAGES: Any = [{"role": "user", "content": "hi"}]


def test_the_client_chats(server: Process) -> None:
    answer = server.client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20)
    assert answer.choices[0].message.content == "Hello there!"
    assert answer.choices[0].finish_reason == "stop"


def test_the_client_streams_and_accumulates(server: Process) -> None:
    with server.client.chat.completions.stream(
        model="tiny",
        messages=MESSAGES,
        max_tokens=20,
        n=2,
        stream_options={"include_usage": True},
    ) as stream:
        completion = stream.get_final_completion()
    assert [choice.message.content for choice in completion.choices] == ["Hello there!"] * 2
    assert completion.choices[0].message.role == "assistant"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 26


def test_the_client_completes_text(server: Process) -> None:
    answer = server.client.completions.create(
        model="default", prompt="say", max_tokens=5, stop=None, extra_body={"top_k": 5}
    )
    assert answer.choices[0].text == "Hello"
    assert answer.model == "default"


def test_the_client_finds_models_with_slashes_in_their_names(server: Process) -> None:
    assert [model.id for model in server.client.models.list()] == ["tiny", "org/tiny"]
    assert server.client.models.retrieve("org/tiny").id == "org/tiny"
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve("org/other")


def test_the_client_sees_the_fields_of_an_error(server: Process) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.code == "decimal_above_max_value"
    assert caught.value.request_id


def test_a_chunked_body_is_read(server: Process) -> None:
    """V29"""
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "max_tokens": 20}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request(
        "POST", "/v1/chat/completions", iter([body[:10], body[10:]]), encode_chunked=True
    )
    assert connection.getresponse().status == 200
    connection.close()


def test_sockets_reset_mid_stream_hurt_nobody_else(server: Process) -> None:
    """A8"""
    body = json.dumps(
        {"model": "tiny", "messages": MESSAGES, "max_tokens": 1000, "stream": True}
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    streams = []
    for _ in range(8):
        stream = socket.create_connection(("127.0.0.1", server.port))
        stream.sendall(head + body)
        stream.recv(100)
        streams.append(stream)
    for stream in streams:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()
    test_the_client_chats(server)
    deadline = time.monotonic() + 1.0
    while server.get("/status")[1]["running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.get("/status")[1]["running"] == 0


def test_it_answers_while_it_loads(folder: Path) -> None:
    with running(str(folder), "--random-seed=1") as process:
        process.wait_for("/health", timeout=20)
        assert process.get("/status")[1]["phase"] == "loading weights"
        assert process.get("/v1/models")[0] == 503
        process.wait_for("/ready")
        assert process.get("/v1/models")[1]["data"][0]["id"] == folder.name


def test_a_stop_while_loading_is_obeyed_at_once(folder: Path) -> None:
    with running(str(folder), "--random-seed=60") as process:
        process.wait_for("/health")
        code, _ = process.end()
    assert code == 0


def test_a_drain_lets_streams_go_on_and_then_ends_them_with_an_error(folder: Path) -> None:
    """A10"""
    with running(str(folder), "--drain-timeout=0.5", "--served-model-name=tiny") as process:
        process.wait_for("/ready")
        stream = process.client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=1900, stream=True
        )
        next(iter(stream))
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        with pytest.raises(openai.InternalServerError) as refused:
            process.client.chat.completions.create(model="tiny", messages=MESSAGES)
        assert refused.value.status_code == 503
        assert refused.value.response.headers[DRAINING] == "1"
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert process.popen.wait(timeout=10) == 0


@pytest.mark.parametrize(
    ("model", "flags", "reason"),
    [
        ("s3://nowhere/model", [], "SourceNotFound"),
        ("/tmp", [], "NoTokenizer"),
        ("/tmp", ["--internal-token-file=/does/not/exist"], "NoInternalToken"),
    ],
)
def test_the_last_line_says_why_it_could_not_start(
    model: str, flags: list[str], reason: str
) -> None:
    with running(model, *flags) as process:
        _, stderr = process.popen.communicate(timeout=20)
        last = stderr.splitlines()[-1]
        assert last.startswith(FATAL)
        assert json.loads(last.removeprefix(FATAL))["reason"] == reason
        assert process.popen.returncode == 1


def test_a_port_in_use_is_said(folder: Path, server: Process) -> None:
    with running(str(folder), f"--port={server.port}") as process:
        _, stderr = process.popen.communicate(timeout=20)
    assert json.loads(stderr.splitlines()[-1].removeprefix(FATAL))["reason"] == "CannotListen"
    assert process.popen.returncode == 1


def test_a_storage_folder_that_cannot_be_used_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    flags = ("--files=on", f"--file-storage-path={tmp_path / 'file' / 'below'}")
    with running(str(folder), *flags) as process:
        _, stderr = process.popen.communicate(timeout=20)
    assert json.loads(stderr.splitlines()[-1].removeprefix(FATAL))["reason"] == "StoreFailed"
    assert process.popen.returncode == 1


def test_files_answer_as_soon_as_the_server_is_ready(folder: Path, tmp_path: Path) -> None:
    with running(str(folder), "--files=on", f"--file-storage-path={tmp_path}") as process:
        process.wait_for("/ready")
        assert process.get("/v1/files")[0] == 200


def test_logs_are_json_and_hold_no_text_of_requests(folder: Path) -> None:
    with running(str(folder), "--served-model-name=tiny", "--log-requests") as process:
        process.wait_for("/ready")
        secret: Any = [{"role": "user", "content": "the secret word"}]
        process.client.chat.completions.create(model="tiny", messages=secret, max_tokens=20)
        _, stderr = process.end()
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert "secret" not in stderr
    assert "Hello there" not in stderr
    assert any(line["message"] == "request" and line["status"] == 200 for line in lines)
