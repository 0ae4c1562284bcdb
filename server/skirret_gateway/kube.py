"""Lists and watches of the Kubernetes API server, as plain dictionaries.

ApiFailed      it refused, broke off or fell silent
└── Expired    the version to go on from is forgotten
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

Object = dict[str, Any]

_GRACE_SECONDS = 10  # after which a watch that should have ended is taken for dead
_PAGE = 500
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiFailed(Exception):
    """The API server refused or broke off; the message says what and why."""


class Expired(ApiFailed):
    """The version to go on from is forgotten: list again."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is, and how to be let in."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None


def in_cluster(environment: Mapping[str, str]) -> Access:
    """As a pod is told. Raises LookupError outside of one."""
    host = environment["KUBERNETES_SERVICE_HOST"]
    port = environment["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    return Access(f"https://{host}:{port}", _ACCOUNT / "token", _ACCOUNT / "ca.crt")


class Api:
    """Lists and watches, as plain dictionaries."""

    def __init__(self, access: Access) -> None:
        self._access = access
        tls = ssl.create_default_context(cafile=access.ca_file) if access.ca_file else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0), read_bufsize=1 << 20
        )

    async def list(self, path: str, selector: str) -> tuple[list[Object], str]:
        """All objects, and the version to watch from. Raises ApiFailed."""
        items: list[Object] = []
        query = {"limit": str(_PAGE), "labelSelector": selector}
        while True:
            async with self._get(path, query, timeout=30) as response:
                page = await response.json()
            items += page.get("items") or []
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                return items, page["metadata"]["resourceVersion"]

    async def watch(
        self, path: str, selector: str, version: str, seconds: float
    ) -> AsyncGenerator[tuple[str, Object]]:
        """Changes since `version` as they come, for so long. Raises ApiFailed, Expired."""
        query = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        async with self._get(path, query, timeout=seconds + _GRACE_SECONDS) as response:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _failure(path, event["object"].get("code"), event["object"])
                yield event["type"], event["object"]

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def _get(
        self, path: str, query: Mapping[str, str], *, timeout: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.get(
                self._access.url + path,
                params=query,
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=5),
            ) as response:
                if response.status != 200:
                    raise _failure(path, response.status, await response.json(content_type=None))
                yield response
        except TimeoutError as error:
            raise ApiFailed(f"{path}: nothing came in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiFailed(f"{path}: {error}") from error

    def _headers(self) -> dict[str, str]:
        if self._access.token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._access.token_file.read_text().strip()}"}


def _failure(path: str, code: int | None, status: Any) -> ApiFailed:
    message = status.get("message") if isinstance(status, dict) else status
    kind = Expired if code == 410 else ApiFailed
    return kind(f"{path}: {code}: {message}")
