"""/v1/models: the names this server answers to."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from skirret_server.api.answer import Reply
from skirret_server.api.completions import unknown_model
from skirret_server.api.exchange import Request
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.served import Served

PREFIX = "/v1/models/"


class Models:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def list(self, request: Request) -> Reply:
        served = self._ready()
        data = [_model(name, served) for name in served.names]
        return Reply.of({"object": "list", "data": data})

    async def retrieve(self, request: Request) -> Reply:
        """Names may hold slashes; clients send them plain or as %2F."""
        served = self._ready()
        name = unquote(request.path.removeprefix(PREFIX))
        if not served.answers_to(name):
            raise unknown_model(name)
        return Reply.of(_model(name, served))

    def _ready(self) -> Served:
        """A draining server still tells what it serves. Raises Unavailable while loading."""
        if self._lifecycle.served is None:
            raise self._lifecycle.loading()
        return self._lifecycle.served


def _model(name: str, served: Served) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "skirret",
        "root": served.path,
        "parent": None,
        "max_model_len": served.limit,
    }
