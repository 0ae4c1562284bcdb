"""`skirret batch` against a server with files, its engine a script."""

from __future__ import annotations

import gzip
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skirret_cli.command import main
from skirret_gateway.testing.running import mount_tenants
from skirret_server.testing import tiny_model

SERVER = """
import asyncio, sys
from pathlib import Path
from skirret_api.launch import from_flags
from skirret_server.serve import Loaded, serve
from skirret_server.testing import Script, ScriptedEngine

class Slow(ScriptedEngine):
    async def _updates(self, request, script):
        async for update in super()._updates(request, script):
            await asyncio.sleep(0.01)
            yield update

def answer(request):
    slow = request.sampling.max_tokens == 1500
    return Script(tokens=b"x" * 1500 if slow else b"Paris")

def load(settings, progress):
    return Loaded(Path(settings.model_path), Slow(answer))

sys.exit(serve(from_flags(sys.argv[1:]), load))
"""


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """`skirret batch …` in this process."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def __call__(self, name: str, *arguments: str | Path) -> Result:
        self._capsys.readouterr()
        status = main(["batch", name, f"--url={self.url}", *map(str, arguments)])
        return Result(status, *self._capsys.readouterr())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = [f"--port={port}", f"--file-storage-path={home / 'store'}", "--served-model-name=tiny"]
    command = [sys.executable, "-c", SERVER, str(tiny_model(home / "model")), *flags]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(command, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not _answers(f"http://127.0.0.1:{port}/v1/files"):
            assert server.poll() is None, (home / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()  # nothing in it is to be kept
        server.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture
def skirret(url: str, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(url, capsys)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Three lines for another model; the second has a temperature that no server takes."""
    return write(tmp_path, line("a"), line("b", temperature=5), line("c"))


def line(custom_id: str, model: str = "gpt-4o-mini", **extra: object) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": custom_id}], **extra}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    )


def write(folder: Path, *lines: str) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(f"{each}\n" for each in lines))
    return path


def process(name: str, *arguments: str | Path, stderr: int) -> subprocess.Popen[bytes]:
    """`skirret batch …` in a process of its own."""
    command = [sys.executable, "-m", "skirret_cli", "batch", name, *map(str, arguments)]
    # A shell that starts tests in its background has them ignore SIGINT, and their children too.
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def files(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/files", timeout=20) as answer:
        return [each["id"] for each in json.load(answer)["data"]]


def newest(skirret: Command) -> str:
    found: str = skirret("ls", "--json", "--limit=1").json[0]["id"]
    return found


def ids(text: str) -> list[str]:
    return [json.loads(each)["custom_id"] for each in text.splitlines()]


def test_a_file_is_submitted_followed_read_and_tried_again(
    skirret: Command, written: Path, tmp_path: Path
) -> None:
    ended = skirret("submit", written, "--model=tiny", "--wait", "--json", "--metadata=team=a")
    batch = ended.json
    assert ended.status == 3  # one line failed
    assert (batch["status"], batch["model"], batch["metadata"]) == (
        "completed",
        "tiny",
        {"team": "a"},
    )
    assert ids(skirret("results", batch["id"]).out) == ["a", "c"]
    errors = tmp_path / "errors.jsonl"
    assert skirret("results", batch["id"], "--errors", "-o", errors).status == 0
    assert ids(errors.read_text()) == ["b"]

    write(tmp_path, line("a", "tiny"), line("b", "tiny"), line("c", "tiny"))
    again = skirret("retry", batch["id"], f"--input={written}", "--wait", "--json")
    assert again.status == 0
    assert again.json["metadata"] == {"team": "a", "retry_of": batch["id"]}
    assert ids(skirret("results", again.json["id"]).out) == ["b"]

    listed = skirret("ls", "--limit=2", "--json").json
    assert [each["id"] for each in listed] == [again.json["id"], batch["id"]]


def test_what_was_cancelled_is_tried_again_from_the_uploaded_input(
    skirret: Command, tmp_path: Path
) -> None:
    slow = {"max_tokens": 1500}
    path = write(tmp_path, line("a", "tiny"), *(line(f"s{n}", "tiny", **slow) for n in range(3)))
    submitted = skirret("submit", path)
    batch_id = submitted.out.strip()
    assert (submitted.status, submitted.err) == (0, "")
    early = skirret("results", batch_id)
    assert early.status == 1
    assert "it has results when it has ended" in early.err

    cancelled = skirret("cancel", batch_id, "--wait")
    assert cancelled.status == 3
    assert cancelled.out.startswith("cancelled: ")
    assert "not run" in cancelled.out
    assert skirret("cancel", batch_id).out == f"{batch_id} is cancelled\n"
    lost = ids(skirret("results", batch_id, "--errors").out)
    again = skirret("retry", batch_id, "--json").json
    assert skirret("cancel", again["id"], "--wait", "--json").json["request_counts"]["total"] in (
        0,
        len(lost),
    )


def test_show_tells_a_person_what_there_is_to_know(skirret: Command, tmp_path: Path) -> None:
    batch_id = skirret("submit", write(tmp_path, line("a")), "--model=tiny").out.strip()
    assert skirret("show", batch_id, "--wait").out.startswith("completed: 1 of 1 lines answered")
    told = skirret("show", batch_id).out
    assert "lines    1 of 1 done, 0 failed" in told
    assert "model    tiny" in told
    table = skirret("ls", "--limit=1").out.splitlines()
    assert table[0].split() == ["ID", "STATUS", "MODEL", "DONE", "FAILED", "ETA", "AGE"]
    assert table[1].split()[:5] == [batch_id, "completed", "tiny", "1/1", "0"]


def test_a_batch_whose_lines_were_all_answered_has_nothing_to_try_again(
    skirret: Command, tmp_path: Path
) -> None:
    path = write(tmp_path, line("a", "tiny"))
    batch_id = skirret("submit", path, "--wait", "--json").json["id"]
    retried = skirret("retry", batch_id)
    assert (retried.status, retried.err) == (
        1,
        f"skirret: {batch_id} is completed: no line failed\n",
    )


def test_a_model_nobody_serves_is_told_with_the_line(skirret: Command, tmp_path: Path) -> None:
    ended = skirret("submit", write(tmp_path, line("a")), "--wait")
    assert ended.status == 3
    assert "line 1: The model `gpt-4o-mini` does not exist" in ended.out


def test_a_file_with_errors_is_not_even_uploaded(skirret: Command, tmp_path: Path) -> None:
    before = len(skirret("ls", "--json", "--limit=100").json)
    path = write(tmp_path, line("a"), "{not json", line("a"))
    refused = skirret("submit", path, "--model=tiny")
    assert refused.status == 1
    assert refused.err.splitlines() == [
        f"{path}: line 2: This line is not parseable as valid JSON. (invalid_json_line)",
        f"{path}: line 3: This custom_id was used on line 1. (duplicate_custom_id)",
    ]
    assert len(skirret("ls", "--json", "--limit=100").json) == before


def test_validate_needs_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = Command("http://127.0.0.1:1", capsys)
    good = nowhere("validate", write(tmp_path, line("a"), line("b")), "--local")
    assert (good.status, good.err) == (0, "")
    assert "2 lines to /v1/chat/completions for gpt-4o-mini" in good.out
    over = nowhere("validate", tmp_path / "in.jsonl", "--local", "--max-lines=1", "--json")
    assert over.status == 1
    assert [each["code"] for each in over.json["errors"]] == ["too_many_tasks"]


def test_validate_says_when_no_server_was_there_to_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, line("a"))
    checked = Command("http://127.0.0.1:1", capsys)("validate", path)
    assert (checked.status, checked.out.startswith(f"{path}: 1 lines")) == (0, True)
    assert "http://127.0.0.1:1 does not answer" in checked.err
    assert "checked on this machine alone" in checked.err


def test_validate_asks_the_server_and_leaves_nothing_there(
    skirret: Command, tmp_path: Path
) -> None:
    before = files(skirret.url)
    wrong = skirret("validate", write(tmp_path, line("a", "tiny"), line("b")), "--json")
    assert wrong.status == 1
    assert [(each["line"], each["code"]) for each in wrong.json["errors"]] == [
        (2, "model_not_found")
    ]
    right = skirret("validate", tmp_path / "in.jsonl", "--model=tiny", "--json")
    assert (right.status, right.json["estimated"]) == (0, False)
    prompt = len("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n")
    assert 10 < right.json["prompt_tokens"] < 2 * prompt
    assert files(skirret.url) == before


def test_a_compressed_file_is_submitted_as_what_it_holds(skirret: Command, tmp_path: Path) -> None:
    path = write(tmp_path, line("a", "tiny"), line("b", "tiny"))
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    ended = skirret("submit", packed, "--wait", "--json")
    assert (ended.status, ended.json["request_counts"]["completed"]) == (0, 2)
    packed.write_bytes(packed.read_bytes()[:-20])
    cut = skirret("submit", packed)
    assert cut.status == 1
    assert f"{packed} is no whole gzip file" in cut.err


def test_results_tell_a_program_where_they_are(skirret: Command, tmp_path: Path) -> None:
    batch_id = skirret("submit", write(tmp_path, line("a", "tiny")), "--wait", "--json").json["id"]
    target = tmp_path / "answers.jsonl"
    told = skirret("results", batch_id, "-o", target, "--json").json
    assert told == {"file": str(target), "bytes": target.stat().st_size}


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """Lines that take long, beside one that fails at once."""
    slow = [line(f"s{n}", "tiny", max_tokens=1500) for n in range(3)]
    return write(tmp_path, line("a", "tiny"), line("b", "tiny", temperature=5), *slow)


def test_an_interrupted_wait_leaves_the_batch_and_says_what_to_do(
    skirret: Command, endless: Path
) -> None:
    waiting = process("submit", endless, "--wait", f"--url={skirret.url}", stderr=subprocess.PIPE)
    assert waiting.stderr is not None
    batch_id = waiting.stderr.readline().decode().strip()
    waiting.send_signal(signal.SIGINT)
    _, advice = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert advice.decode().splitlines() == [
        f"{batch_id} goes on without you",
        f"  to look again: skirret batch show {batch_id} --wait --url={skirret.url}",
        f"  to stop it:    skirret batch cancel {batch_id} --url={skirret.url}",
    ]
    assert skirret("show", batch_id, "--json").json["status"] in ("validating", "in_progress")
    skirret("cancel", batch_id, "--wait")


def test_a_terminal_shows_lines_speed_and_failures(skirret: Command, endless: Path) -> None:
    ours, theirs = pty.openpty()
    waiting = process("submit", endless, "--wait", f"--url={skirret.url}", stderr=theirs)
    os.close(theirs)
    shown, deadline = "", time.monotonic() + 30
    while "1 failed" not in shown:
        assert time.monotonic() < deadline, shown
        shown += os.read(ours, 4096).decode()
    waiting.send_signal(signal.SIGINT)
    waiting.wait(timeout=20)
    os.close(ours)
    assert "\r\x1b[Kin_progress  [#########---------------]  40%  2/5" in shown
    assert "tok/s" in shown
    batch_id = shown.split()[0] if shown.startswith("batch_") else newest(skirret)
    skirret("cancel", batch_id, "--wait")


def test_the_gateway_is_asked_in_the_same_way(
    skirret: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tenants = mount_tenants(tmp_path, "team")
    (tmp_path / "endpoints.json").write_text(
        json.dumps({"tiny": [skirret.url.removesuffix("/v1")]})
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = [f"--port={port}", f"--endpoints={tmp_path}/endpoints.json", "--host=127.0.0.1"]
    flags += [f"--tenants={tenants}", "--release-namespace=team"]
    gateway = subprocess.Popen([sys.executable, "-m", "skirret_gateway", *flags])
    try:
        deadline = time.monotonic() + 30
        while not _answers(f"http://127.0.0.1:{port}/v1/files"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        through = Command(f"http://127.0.0.1:{port}", capsys)
        path = write(tmp_path, line("a", "tiny"), line("b", "tiny"))
        assert through("validate", path, "--json").json["estimated"] is False
        batch_id = through("submit", path).out.strip()
        files = [f"--store-file={tenants}/team.store.json", f"--token-file={tenants}/team.token"]
        command = [sys.executable, "-m", "skirret_batch.worker", f"--batch={batch_id}", *files]
        subprocess.run([*command, f"--gateway=http://127.0.0.1:{port}"], check=True, timeout=60)
        assert ids(through("results", batch_id).out) == ["a", "b"]
    finally:
        gateway.terminate()
        gateway.wait()


def test_an_unknown_batch_is_the_servers_own_words(skirret: Command) -> None:
    refused = skirret("show", "batch_nowhere")
    assert refused.status == 1
    assert refused.err == "skirret: No batch found with id 'batch_nowhere'.\n"


def test_a_missing_file_is_named(skirret: Command, tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    refused = skirret("submit", missing)
    assert (refused.status, refused.err) == (
        1,
        f"skirret: {missing}: No such file or directory\n",
    )


def test_nothing_is_uploaded_under_a_name_the_server_refuses(
    skirret: Command, tmp_path: Path
) -> None:
    path = write(tmp_path, line("a")).rename(tmp_path / "in.txt")
    refused = skirret("submit", path)
    assert refused.status == 1
    assert ".jsonl" in refused.err


def test_the_command_is_a_program(url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "skirret_cli", "batch", "ls", "--json", "--limit=1"],
        env={**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "anything"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert isinstance(json.loads(done.stdout), list)
