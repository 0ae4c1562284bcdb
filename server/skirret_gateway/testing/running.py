"""A gateway that listens, and the requests that tests send it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skirret_gateway.gateway import Gateway
from skirret_gateway.testing.client import Answer, Client

CHAT = "/v1/chat/completions"


def chat(model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], **fields}


def mount_tenants(folder: Path, *namespaces: str) -> Path:
    """`folder/tenants`, as the chart mounts it: a folder store and a token for each namespace."""
    mount = folder / "tenants"
    mount.mkdir()
    for name in namespaces:
        store = {"kind": "folder", "path": str(folder / "stores" / name)}
        (mount / f"{name}.store.json").write_text(json.dumps(store))
        (mount / f"{name}.token").write_text(f"token-of-{name}\n")
    return mount


@dataclass
class Running:
    gateway: Gateway
    endpoints: Path  # the file it routes by, where there is no Kubernetes

    @property
    def port(self) -> int:
        return self.gateway.port

    def client(self) -> Client:
        return Client(self.port)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """On a connection of its own, in no more than five seconds."""
        async with asyncio.timeout(5), self.client() as client:
            return await client.ask(method, path, body, **headers)

    async def chat(self, model: str = "m", **fields: Any) -> Answer:
        return await self.ask("POST", CHAT, chat(model, **fields))


Start = Callable[..., Awaitable[Running]]
