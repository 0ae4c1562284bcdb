"""Where a model comes from: a folder here, a hub, or a bucket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from skirret_server.load.download import Patience, download, listed
from skirret_server.load.errors import SourceNotFound
from skirret_server.load.progress import Progress
from skirret_server.load.remote import Remote


def fetch(
    uri: str,
    progress: Progress,
    check: Callable[[Path], object],
    environment: Mapping[str, str] = os.environ,
    patience: Patience | None = None,
) -> Path:
    """The model's folder on this machine, brought here first if need be. Blocks.

    `uri` is a folder, file://, hf://org/name[@revision] or s3://bucket/prefix; what else is needed
    is in the environment: HF_ENDPOINT, HF_TOKEN, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_REGION, XDG_CACHE_HOME. Raises LoadError.
    """
    if (folder := _local(uri)) is not None:
        return folder

    async def bring() -> Path:
        async with _opened(uri, environment) as remote:
            return await download(
                remote, cache(environment), progress, check, patience or Patience()
            )

    return asyncio.run(bring())


def look(
    uri: str,
    check: Callable[[Path], object],
    environment: Mapping[str, str] = os.environ,
    patience: Patience | None = None,
) -> str:
    """What there is at `uri`, in a line; brings nothing here. Blocks. Raises LoadError as `fetch`.

    `check` is asked where the files are at hand; of a remote source only its list of files is read.
    """
    if (folder := _local(uri)) is not None:
        check(folder)
        return str(folder)

    async def see() -> str:
        async with _opened(uri, environment) as remote:
            found = await listed(remote, patience or Patience())
            size = sum(each.size for each in found.files)
            return f"{remote.name} {found.version}: {len(found.files)} files, {size} bytes"

    return asyncio.run(see())


def _local(uri: str) -> Path | None:
    """None for a source that must be fetched."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme in ("hf", "s3"):
        return None
    if separator and scheme != "file":
        raise SourceNotFound(f"{uri}: give a folder, or a URI that begins with hf:// or s3://")
    folder = Path(rest if separator else uri).expanduser()
    if not folder.is_dir():
        raise SourceNotFound(f"{folder} is not a folder")
    return folder


@asynccontextmanager
async def _opened(uri: str, environment: Mapping[str, str]) -> AsyncIterator[Remote]:
    scheme, _, rest = uri.partition("://")
    remote = _hub(rest, environment) if scheme == "hf" else _bucket(rest, environment)
    try:
        yield remote
    finally:
        await remote.close()


def cache(environment: Mapping[str, str]) -> Path:
    """The folder that downloaded models stay in."""
    home = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "skirret" / "models"


def _hub(rest: str, environment: Mapping[str, str]) -> Remote:
    from skirret_server.load.hub import HUB, HubModel

    repository, _, revision = rest.partition("@")
    return HubModel(
        repository,
        revision or "main",
        endpoint=environment.get("HF_ENDPOINT") or HUB,
        token=environment.get("HF_TOKEN") or None,
    )


def _bucket(rest: str, environment: Mapping[str, str]) -> Remote:
    from skirret_api.tenants import S3Store
    from skirret_batch.store import Retries, open_store
    from skirret_server.load.bucket import BucketModel

    bucket, _, prefix = rest.partition("/")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = environment.get("AWS_ENDPOINT_URL")
    settings = S3Store(
        endpoint=endpoint or f"https://s3.{region}.amazonaws.com",
        bucket=bucket,
        region=region,
        accessKey=environment.get("AWS_ACCESS_KEY_ID", ""),
        secretKey=environment.get("AWS_SECRET_ACCESS_KEY", ""),
        pathStyle=endpoint is not None,
    )
    # We have patience of our own.
    return BucketModel(open_store(settings, Retries(seconds=2.0)), bucket, prefix)
