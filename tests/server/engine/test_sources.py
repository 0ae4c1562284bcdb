"""Bringing models from a hub and a bucket, both small and nearby."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from skirret_api.tenants import FolderStore
from skirret_batch.store import open_store
from skirret_server.fetch import main
from skirret_server.load.bucket import BucketModel
from skirret_server.load.download import Patience, download
from skirret_server.load.errors import (
    BrokenCheckpoint,
    DoesNotFit,
    LoadError,
    SourceDenied,
    SourceNotFound,
    SourceStalled,
    SourceUnavailable,
)
from skirret_server.load.progress import Progress
from skirret_server.load.source import fetch, look

COMMIT = "c0ffee"
WEIGHTS = bytes(range(256)) * 4000


class Hub:
    """A hub on a thread of its own, with one repository, org/name; and its moods."""

    def __init__(self) -> None:
        self.files = {
            "config.json": b"{}",
            "tokenizer.json": b"{ }",
            "model.safetensors": WEIGHTS,
            "pytorch_model.bin": b"a pickle",
            "consolidated.safetensors": b"the same again",
        }
        self.sha256 = {"model.safetensors": hashlib.sha256(WEIGHTS).hexdigest()}
        self.asked: list[str] = []
        self.cuts = 0  # answers yet to be cut off half-way
        self.stalls = False
        self.closing = asyncio.Event()
        self.knows_ranges = True
        self.refusal: tuple[int, str] | None = None
        self.loop = asyncio.new_event_loop()
        self.url = ""

    async def serve(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/api/models/{org}/{name}/revision/{revision}", self.list)
        app.router.add_get("/{org}/{name}/resolve/{revision}/{file}", self.send)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def list(self, request: web.Request) -> web.Response:
        if self.refusal is not None:
            status, code = self.refusal
            return web.Response(status=status, headers={"x-error-code": code})
        assert request.match_info["org"] + "/" + request.match_info["name"] == "org/name"
        self.asked.append(f"list {request.match_info['revision']}")
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"sha256": self.sha256[name]} if name in self.sha256 else None,
            }
            for name, data in self.files.items()
        ]
        return web.json_response({"sha": COMMIT, "siblings": siblings})

    async def send(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"]
        assert request.match_info["revision"] == COMMIT
        start = request.http_range.start or 0 if self.knows_ranges else 0
        self.asked.append(f"{name} from {start}")
        data = self.files[name][start:]
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(data)
        await response.prepare(request)
        if name.endswith(".safetensors") and self.stalls:
            await self.closing.wait()
        if name.endswith(".safetensors") and self.cuts:
            self.cuts -= 1
            await response.write(data[: len(data) // 2])
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(data)
        return response


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.loop.run_forever)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(hub.serve(), hub.loop).result()
    yield hub
    hub.loop.call_soon_threadsafe(hub.closing.set)
    asyncio.run_coroutine_threadsafe(runner.cleanup(), hub.loop).result()
    hub.loop.call_soon_threadsafe(hub.loop.stop)
    thread.join()
    hub.loop.close()


def accept(folder: Path) -> None:
    assert (folder / "config.json").exists()


def brought(
    hub: Hub,
    cache: Path,
    uri: str = "hf://org/name",
    check: Callable[[Path], None] = accept,
    progress: Progress | None = None,
) -> Path:
    environment = {"HF_ENDPOINT": hub.url, "XDG_CACHE_HOME": str(cache)}
    return fetch(uri, progress or Progress(), check, environment, Patience(stall=1.0, pause=0.02))


def test_a_model_comes_whole_without_what_nobody_reads(hub: Hub, tmp_path: Path) -> None:
    progress = Progress()
    folder = brought(hub, tmp_path, progress=progress)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (progress.status().phase, progress.status().percent) == ("downloading", 100)


def test_a_model_that_is_here_is_not_brought_again(hub: Hub, tmp_path: Path) -> None:
    first = brought(hub, tmp_path)
    hub.asked.clear()
    assert brought(hub, tmp_path) == first
    assert hub.asked == ["list main"]


def test_looking_at_a_model_brings_nothing_here(hub: Hub, tmp_path: Path) -> None:
    environment = {"HF_ENDPOINT": hub.url, "XDG_CACHE_HOME": str(tmp_path)}
    seen = look("hf://org/name", accept, environment)
    assert seen == f"hf--org--name c0ffee: 3 files, {len(WEIGHTS) + 5} bytes"
    assert hub.asked == ["list main"]
    assert list(tmp_path.iterdir()) == []


def test_looking_where_one_may_not_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.refusal = (401, "GatedRepo")
    environment = {"HF_ENDPOINT": hub.url, "XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(SourceDenied):
        look("hf://org/name", accept, environment)


def test_the_command_tells_what_is_wrong_in_its_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nothing")]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith('skirret-fatal: {"reason": "SourceNotFound"')


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    known = {"architectures": ["Nobody"]}
    (tmp_path / "config.json").write_text(json.dumps(known))
    code = (
        "import sys; from skirret_server.fetch import main;"
        f"code = main([{str(tmp_path)!r}, '--look']);"
        "sys.exit(2 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, "UnsupportedModel" in done.stderr) == (1, True)


def test_a_revision_is_asked_for_by_name(hub: Hub, tmp_path: Path) -> None:
    brought(hub, tmp_path, "hf://org/name@v1.0")
    assert hub.asked[0] == "list v1.0"


def test_a_transfer_that_breaks_off_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = 2
    folder = brought(hub, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    starts = [int(each.split()[-1]) for each in hub.asked if each.startswith("model.safe")]
    assert len(starts) == 3
    assert 0 == starts[0] < starts[1] < starts[2]


def test_a_hub_that_knows_no_ranges_is_read_from_the_start(hub: Hub, tmp_path: Path) -> None:
    hub.cuts, hub.knows_ranges = 1, False
    assert (brought(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_another_process_goes_on_where_one_was_killed(hub: Hub, tmp_path: Path) -> None:
    hub.stalls, hub.cuts = True, 0
    with pytest.raises(SourceStalled):
        brought(hub, tmp_path)
    [part] = tmp_path.glob("skirret/models/*/.part-*")
    (part / "model.safetensors.part").write_bytes(WEIGHTS[:1000])
    hub.stalls = False
    brought(hub, tmp_path)
    assert "model.safetensors from 1000" in hub.asked


def test_a_source_that_does_not_move_is_given_up(hub: Hub, tmp_path: Path) -> None:
    hub.stalls = True
    with pytest.raises(SourceStalled, match="nothing has come"):
        brought(hub, tmp_path)


def test_wrong_bytes_are_refused_and_forgotten(hub: Hub, tmp_path: Path) -> None:
    hub.sha256["model.safetensors"] = "0" * 64
    with pytest.raises(BrokenCheckpoint, match="model.safetensors came with other bytes"):
        brought(hub, tmp_path)
    hub.sha256.clear()
    assert (brought(hub, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_model_that_will_not_fit_is_refused_before_its_weights_come(
    hub: Hub, tmp_path: Path
) -> None:
    def refuse(folder: Path) -> None:
        raise DoesNotFit("too large")

    with pytest.raises(DoesNotFit):
        brought(hub, tmp_path, check=refuse)
    assert not any("safetensors" in each for each in hub.asked)


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (401, "RepoNotFound", SourceNotFound),
        (404, "RevisionNotFound", SourceNotFound),
        (401, "", SourceDenied),
        (403, "GatedRepo", SourceDenied),
        (503, "", SourceUnavailable),
    ],
)
def test_refusals_tell_what_is_missing(
    hub: Hub, tmp_path: Path, status: int, code: str, error: type[LoadError]
) -> None:
    hub.refusal = (status, code)
    with pytest.raises(error, match=r"org/name@main"):
        brought(hub, tmp_path)


def test_a_repository_without_safetensors_is_refused(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(BrokenCheckpoint, match="no safetensors"):
        brought(hub, tmp_path)


async def test_of_two_processes_one_brings_the_model(hub: Hub, tmp_path: Path) -> None:
    folders = await asyncio.gather(*(asyncio.to_thread(brought, hub, tmp_path) for _ in range(2)))
    assert folders[0] == folders[1]
    assert len([each for each in hub.asked if each.startswith("model.safe")]) == 1


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    for uri in (str(tmp_path), f"file://{tmp_path}"):
        assert fetch(uri, Progress(), accept, {}) == tmp_path
    with pytest.raises(SourceNotFound, match="is not a folder"):
        fetch(str(tmp_path / "nowhere"), Progress(), accept, {})
    with pytest.raises(SourceNotFound, match="begins with hf:// or s3://"):
        fetch("pvc://claim/path", Progress(), accept, {})


async def test_a_bucket_is_brought_like_a_hub(tmp_path: Path) -> None:
    store = open_store(FolderStore(path=str(tmp_path / "store")))
    for name in ("config.json", "model.safetensors", "deeper/model.safetensors"):
        await store.put(f"models/tiny/{name}", name.encode())
    await store.put("models/tiny-2/config.json", b"{}")
    remote = BucketModel(store, "bucket", "models/tiny")
    folder = await download(remote, tmp_path / "cache", Progress(), accept, Patience())
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    await remote.close()


async def test_an_empty_bucket_has_no_model(tmp_path: Path) -> None:
    remote = BucketModel(open_store(FolderStore(path=str(tmp_path))), "bucket", "nowhere")
    with pytest.raises(SourceNotFound, match="s3://bucket/nowhere/ has no objects"):
        await download(remote, tmp_path, Progress(), accept, Patience())
    await remote.close()
