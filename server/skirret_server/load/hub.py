"""Models of a Hugging Face hub: hf://org/name, or hf://org/name@revision."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from skirret_server.load.errors import LoadError, SourceDenied, SourceNotFound
from skirret_server.load.remote import Interrupted, Listing, RemoteFile

HUB = "https://huggingface.co"
_PIECE = 1 << 20  # bytes


class HubModel:
    """One repository at one revision."""

    def __init__(
        self,
        repository: str,
        revision: str,
        *,
        endpoint: str = HUB,
        token: str | None = None,
        read_timeout: float = 30.0,
    ) -> None:
        self._repository = repository
        self._revision = revision
        self._endpoint = endpoint.rstrip("/")
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=read_timeout),
        )
        self._commit = revision

    @property
    def name(self) -> str:
        return f"hf--{self._repository.replace('/', '--')}"

    async def listing(self) -> Listing:
        url = f"{self._endpoint}/api/models/{self._repository}/revision/{self._revision}"
        async with self._get(url, params={"blobs": "true"}) as response:
            found: dict[str, Any] = await response.json()
        self._commit = found["sha"]
        return Listing(
            version=self._commit,
            files=tuple(
                RemoteFile(each["rfilename"], each["size"], (each.get("lfs") or {}).get("sha256"))
                for each in found["siblings"]
                if "/" not in each["rfilename"]
            ),
        )

    async def stream(self, file: RemoteFile, start: int) -> AsyncGenerator[bytes, None]:
        # The commit, not the branch: it must not move between two files.
        url = f"{self._endpoint}/{self._repository}/resolve/{self._commit}/{file.name}"
        headers = {"Range": f"bytes={start}-"} if start else {}
        async with self._get(url, headers=headers) as response:
            skip = start if response.status == 200 else 0  # it does not know ranges
            async for piece in response.content.iter_chunked(_PIECE):
                if skip < len(piece):
                    yield piece[skip:]
                skip = max(skip - len(piece), 0)

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def _get(self, url: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.get(url, **options) as response:
                if response.status >= 400:
                    raise self._refusal(response)
                yield response
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise Interrupted(
                f"hf://{self._repository}: {type(error).__name__} {error} at {self._endpoint}"
            ) from error

    def _refusal(self, response: aiohttp.ClientResponse) -> LoadError:
        where = f"hf://{self._repository}@{self._revision}"
        code = response.headers.get("x-error-code", "")
        # The hub says 401 of repositories that don't exist, too.
        if response.status == 404 or code in ("RepoNotFound", "RevisionNotFound"):
            return SourceNotFound(
                f"{where} is not at {self._endpoint} ({code or response.status}); if it is "
                "private, give HF_TOKEN"
            )
        if response.status in (401, 403):
            return SourceDenied(
                f"{where} is closed to us ({code or response.status}); give the HF_TOKEN of "
                "somebody who may read it"
            )
        return Interrupted(f"{where}: {self._endpoint} answers {response.status}")
