"""Asks servers that are not ready how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import aiohttp
from pydantic import TypeAdapter, ValidationError

from skirret_api import internal
from skirret_api.parts import Object
from skirret_operator.reconcile.cause import Progress

_TIMEOUT = aiohttp.ClientTimeout(total=1.5)
_PROGRESS = TypeAdapter(Progress)


class Servers:
    """`tokens` are those of each namespace; `port` is that of every server."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        tokens: dict[str, str],
        port: int = internal.SERVER_PORT,
    ) -> None:
        self._session = session
        self._tokens = tokens
        self._port = port

    async def progress(self, pods: Iterable[Object]) -> dict[str, Progress]:
        """By the pod's name; a server that does not answer is left out."""
        asked = [pod for pod in pods if pod.get("status", {}).get("podIP")]
        answers = await asyncio.gather(*map(self._ask, asked))
        return {
            pod["metadata"]["name"]: answer
            for pod, answer in zip(asked, answers, strict=True)
            if answer is not None
        }

    async def _ask(self, pod: Object) -> Progress | None:
        address = pod["status"]["podIP"]
        host = f"[{address}]" if ":" in address else address
        token = self._tokens.get(pod["metadata"]["namespace"])
        headers = {internal.TOKEN: token} if token else {}
        url = f"http://{host}:{self._port}/status"
        try:
            async with self._session.get(url, headers=headers, timeout=_TIMEOUT) as response:
                return _PROGRESS.validate_json(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError):
            return None  # it has not come that far
