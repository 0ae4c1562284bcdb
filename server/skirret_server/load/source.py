"""Where a model comes from: a folder here, a hub, or a bucket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from skirret_server.load.download import Patience, download
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
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        folder = Path(rest if separator else uri).expanduser()
        if not folder.is_dir():
            raise SourceNotFound(f"{folder} is not a folder")
        return folder
    if scheme not in ("hf", "s3"):
        raise SourceNotFound(f"{uri}: give a folder, or a URI that begins with hf:// or s3://")

    async def bring() -> Path:
        remote = _hub(rest, environment) if scheme == "hf" else _bucket(rest, environment)
        try:
            return await download(
                remote, cache(environment), progress, check, patience or Patience()
            )
        finally:
            await remote.close()

    return asyncio.run(bring())


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
