"""Every route of the gateway, and what answers when there is none."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from skirret_api.errors import InvalidRequest, NotFound, Unauthorized
from skirret_gateway import asgi, metrics
from skirret_gateway.caller import Caller, Tenants
from skirret_gateway.fleet import Fleet
from skirret_gateway.forward import Forward
from skirret_gateway.meter import Meter
from skirret_gateway.reply import Reply
from skirret_gateway.request import Request
from skirret_gateway.table import Route

COMPLETIONS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
NATIVE = {"/get_model_info": "GET", "/tokenize": "POST"}
FILES = re.compile(r"/v1/(?:files|batches)(?:/.*)?")
MODEL = "/v1/models/"

Answer = Callable[[Request, Reply], Awaitable[None]]


@dataclass(slots=True)
class State:
    """What the probes are told."""

    started_at: float  # seconds since the epoch
    is_draining: bool = False


class Routes:
    """The door's handler."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        forward: Forward,
        tenants: Tenants,
        files: Callable[[Caller], asgi.Application] | None,
        meter: Meter,
        metrics: metrics.Metrics,
        state: State,
    ) -> None:
        self._fleet = fleet
        self._forward = forward
        self._tenants = tenants
        self._files = files
        self._meter = meter
        self._metrics = metrics
        self._state = state
        self._by_path: Mapping[str, Mapping[str, Answer]] = {
            **dict.fromkeys(COMPLETIONS, {"POST": self._completion}),
            **{path: {method: self._native} for path, method in NATIVE.items()},
            "/v1/models": {"GET": self._models},
            "/v1/usage": {"GET": self._usage},
            "/health": {"GET": self._health},
            "/ready": {"GET": self._ready},
            "/metrics": {"GET": self._metrics_page},
            "/internal/demand": {"GET": self._demand},
        }

    async def __call__(self, request: Request, reply: Reply) -> None:
        methods = self._by_path.get(request.path)
        if methods is None:
            await self._by_pattern(request, reply)
            return
        await _allowed(request, methods)(request, reply)

    async def _by_pattern(self, request: Request, reply: Reply) -> None:
        if request.path.startswith(MODEL):
            await _allowed(request, {"GET": self._model})(request, reply)
        elif FILES.fullmatch(request.path) and self._files is not None:
            await asgi.run(self._files(await self._tenants.caller(request)), request, reply)
        else:
            raise NotFound(f"Invalid URL ({request.method} {request.path})")

    async def _completion(self, request: Request, reply: Reply) -> None:
        await self._forward.completion(request, reply, await self._tenants.caller(request))

    async def _native(self, request: Request, reply: Reply) -> None:
        caller = await self._tenants.caller(request)
        if not caller.is_worker:
            raise Unauthorized(f"{request.path} needs the token of a worker of batches.")
        names = parse_qs(request.query.decode("latin-1")).get("model", [])
        if len(names) != 1:
            raise InvalidRequest(
                "Missing required parameter: 'model'. Give it once, in the URL.",
                param="model",
                code="missing_required_parameter",
            )
        await self._forward.native(request, reply, caller, names[0])

    async def _models(self, request: Request, reply: Reply) -> None:
        table, caller = self._fleet.table, await self._tenants.caller(request)
        models = [
            _model(name, route)
            for route in table.routes.values()
            for name in table.names(caller.namespace, route)
            if caller.may_ask(name, route)
        ]
        reply.json({"object": "list", "data": models})

    async def _model(self, request: Request, reply: Reply) -> None:
        name = unquote(request.path.removeprefix(MODEL))
        reply.json(_model(name, self._fleet.find(await self._tenants.caller(request), name)))

    async def _usage(self, request: Request, reply: Reply) -> None:
        reply.json(self._meter.today(await self._tenants.caller(request)))

    async def _health(self, request: Request, reply: Reply) -> None:
        reply.json({"status": "ok"})

    async def _ready(self, request: Request, reply: Reply) -> None:
        if self._state.is_draining:
            reply.json({"status": "draining"}, 503)
        elif not self._fleet.is_ready:
            reply.json({"status": "starting"}, 503)
        else:
            reply.json({"status": "ok"})

    async def _metrics_page(self, request: Request, reply: Reply) -> None:
        fleet = self._fleet
        routes = fleet.table.routes.values() if fleet.is_ready else ()
        page = self._metrics.render(
            (route.id, fleet.held(route.id), fleet.running(route.id), len(route.replicas))
            for route in routes
        )
        reply.send(200, [(b"content-type", metrics.CONTENT_TYPE)], page)

    async def _demand(self, request: Request, reply: Reply) -> None:
        models = {
            str(model): {
                "held": self._fleet.held(model),
                "running": self._fleet.running(model),
                "last_request_age": self._fleet.last_request_age(model),
            }
            for model in self._fleet.table.routes
        }
        reply.json({"started_at": self._state.started_at, "models": models})


def _allowed(request: Request, methods: Mapping[str, Answer]) -> Answer:
    method = "GET" if request.method == "HEAD" else request.method
    answer = methods.get(method)
    if answer is None:
        allow = ", ".join(methods)
        raise InvalidRequest(
            f"Not allowed to {request.method} on {request.path}. The route takes {allow}.",
            status=405,
            headers={"allow": allow},
        )
    return answer


def _model(name: str, route: Route) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": route.model.created,
        "owned_by": route.id.namespace or "skirret",
        "root": str(route.id),  # the same for all names of one model
    }
