"""Stores to test on: a folder, and a bucket of a real SeaweedFS."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from skirret_api.tenants import FolderStore, S3Store
from skirret_batch.bucket import Bucket
from skirret_batch.create_only import CreateOnly
from skirret_batch.folder import Folder
from skirret_batch.s3 import S3
from skirret_batch.store import BatchStore, Retries
from skirret_batch.testing import Wrapped
from skirret_batch.testing.crew import free_ports
from skirret_batch.testing.network import Spoiler, spoiled
from skirret_batch.worker import WorkerSettings

_KEY, _SECRET = "test", "secret"
_PORTS = ("master", "volume", "filer", "s3")


@pytest.fixture
def fast() -> WorkerSettings:
    """The worker's waits, a hundredth as long."""
    return WorkerSettings(
        flush_after=0.02,
        renew_after=0.1,
        stale_after=0.5,
        poll=0.02,
        report_after=0.02,
        cancel_drain=0.05,
        stop_drain=0.05,
        retry_first=0.01,
        retry_longest=0.02,
        rest_first=0.01,
        rest_longest=0.1,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(FolderStore(path=str(tmp_path / "store")), durable=False)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an S3 service that runs until the tests end."""
    home = tmp_path_factory.mktemp("weed")
    config = home / "s3.json"
    identity = {
        "name": "test",
        "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    ports = free_ports(2 * len(_PORTS))
    flags = [f"-{name}.port{suffix}={ports.pop()}" for name in _PORTS for suffix in ("", ".grpc")]
    url = next(f"http://127.0.0.1:{f.split('=')[1]}" for f in flags if f.startswith("-s3.port="))
    weed = Path(sys.executable).with_name("weed")
    command = [
        *(str(weed), "server", f"-dir={home}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"),
        *(
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",  # as other services
            f"-s3.config={config}",
            "-master.telemetry=false",
            *flags,
        ),
        *("-master.volumeSizeLimitMB=64", "-volume.max=64"),
    ]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
        try:
            _wait_for(url, process, home / "log")
            yield url
        finally:
            process.kill()  # nothing in it is to be kept
            process.wait()
            shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def spoiler(seaweed: str) -> AsyncIterator[tuple[Spoiler, str]]:
    """What may go wrong on the way to the service, and the URL of that way."""
    async with spoiled(seaweed) as spoiler:
        yield spoiler


@pytest.fixture(scope="session")
def bucket(seaweed: str) -> S3Store:
    """A bucket, ready for the first write."""
    settings = S3Store(endpoint=seaweed, bucket="tests", accessKey=_KEY, secretKey=_SECRET)
    from minio import Minio

    client = Minio(
        seaweed.removeprefix("http://"), access_key=_KEY, secret_key=_SECRET, secure=False
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            client.make_bucket(settings.bucket)
            return settings
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.fixture
def create_only(folder: Folder) -> CreateOnly:
    """A store without If-Match."""

    class NoMatch(Wrapped):
        async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
            raise AssertionError(f"If-Match on {key}")

    async def nothing(name: str, key: str) -> None:
        return

    return CreateOnly(NoMatch(folder, nothing, nothing))


@pytest.fixture(
    params=[
        "folder",
        "create-only",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("s3-create-only", marks=pytest.mark.s3),
    ]
)
async def store(request: pytest.FixtureRequest, folder: Folder) -> AsyncIterator[BatchStore]:
    """Each kind of store in turn."""
    if request.param == "folder":
        await folder.probe()
        yield folder
        return
    if request.param == "create-only":
        await folder.probe()
        yield request.getfixturevalue("create_only")
        return
    settings: S3Store = request.getfixturevalue("bucket")
    s3 = S3(settings.model_copy(update={"prefix": f"t{uuid4().hex}"}), Retries(seconds=20))
    yield CreateOnly(s3) if request.param == "s3-create-only" else Bucket(s3)
    await s3.close()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"weed ended: {log.read_text()[-1500:]}")
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except urllib.error.HTTPError as error:  # it answers: "access denied"
            error.close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} does not answer")
