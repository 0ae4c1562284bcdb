"""The server's ASGI application: one door with one order of checks for every route.

size and path → key → route and method → body → the handler's own checks → first token → 200.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from skirret_api import internal
from skirret_api.errors import ApiError, NotFound, ServerFault, Unauthorized
from skirret_server.api.answer import Answer, EventStream, Pace, Reply
from skirret_server.api.cors import Cors
from skirret_server.api.exchange import (
    Caller,
    Receive,
    Request,
    Scope,
    Send,
    read_body,
    read_headers,
    request_id,
)
from skirret_server.api.interrupts import ClientGone

MAX_JSON = 32 * 1024 * 1024
CLIENT_GONE = 499
_ANY = ("GET", "POST", "DELETE")  # methods of a mounted application

log = logging.getLogger("skirret.api")

Handler = Callable[[Request], Awaitable[Reply | EventStream]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    path: str  # one that ends in "/" takes everything below it
    methods: Mapping[str, Handler]
    is_open: bool = False  # answers without a key: probes and metrics


@dataclass(frozen=True, slots=True)
class Mount:
    """An ASGI application that answers a path and all below it."""

    path: str
    app: AsgiApp


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask: the clients' key, and the token of our own processes."""

    api_key: str | None = None
    internal_token: str = field(default_factory=lambda: secrets.token_hex(32))

    def caller(self, headers: Mapping[str, str], *, is_open: bool) -> Caller:
        """Raises Unauthorized."""
        if _same(headers.get(internal.TOKEN, ""), self.internal_token):
            return _internal_caller(headers)
        if self.api_key is not None and not is_open:
            self._check_key(headers.get("authorization", ""))
        return Caller()

    def _check_key(self, header: str) -> None:
        scheme, _, key = header.partition(" ")
        if scheme.lower() == "bearer" and self.api_key and _same(key.strip(), self.api_key):
            return
        if not key:
            raise Unauthorized(
                "You didn't provide an API key. You need to provide your API key in an "
                "Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
            )
        raise Unauthorized(f"Incorrect API key provided: {_masked(key)}.")


class App:
    """Finds the handler, and turns whatever happens into exactly one answer."""

    def __init__(
        self,
        routes: list[Route],
        access: Access,
        *,
        pace: Pace | None = None,
        cors: Cors | None = None,
        mounts: Callable[[], list[Mount]] = list,
        max_body: int = MAX_JSON,
        done: Callable[[Request, int], None] = lambda request, status: None,
    ) -> None:
        """`mounts` is asked at each request: what it names may come up after the socket does.

        `done` is told of every request and its status; 499 when the client did not wait for it.
        """
        self._exact = {route.path: route for route in routes}
        self._below = [route for route in routes if route.path.endswith("/")]
        self._access = access
        self._pace = pace or Pace()
        self._cors = cors or Cors()
        self._mounts = mounts
        self._max_body = max_body
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _other(scope, receive, send)
            return
        headers = read_headers(scope)
        request = Request(
            id=request_id(headers),
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            headers=headers,
            started=time.monotonic(),
        )
        answer = Answer(send, request, self._pace, self._cors.headers(headers))
        try:
            await self._answer(request, scope, receive, answer)
        except ClientGone as gone:
            request.facts["gone"] = type(gone).__name__
            self._done(request, CLIENT_GONE)
        else:
            self._done(request, answer.status or CLIENT_GONE)

    async def _answer(
        self, request: Request, scope: Scope, receive: Receive, answer: Answer
    ) -> None:
        """Raises ClientGone and nothing else."""
        try:
            await self._respond(request, scope, receive, answer)
        except ApiError as error:
            await answer.fail(error)
        except ClientGone:
            raise
        except Exception:
            # The one place that must survive anything: other requests have done no wrong.
            log.exception("request failed", extra={"request_id": request.id})
            await answer.fail(ServerFault(request.id))

    async def _respond(
        self, request: Request, scope: Scope, receive: Receive, answer: Answer
    ) -> None:
        route = self._route(request.path)
        if route is not None and self._cors.is_preflight(request.method, request.headers):
            # Browsers send no key with this one.
            methods = ", ".join(route.methods if isinstance(route, Route) else _ANY)
            await answer.reply(Reply(b"", headers=self._cors.preflight(methods, request.headers)))
            return
        is_open = isinstance(route, Route) and route.is_open
        request.caller = self._access.caller(request.headers, is_open=is_open)
        if isinstance(route, Mount):
            await route.app(scope, receive, answer.pass_on)
            return
        handler = self._handler(route, request)
        if request.method == "POST":
            request.body = await read_body(receive, request.headers, self._max_body)
        watch = asyncio.create_task(_watch(receive, request))
        try:
            async with request.running:
                result = await handler(request)
                if isinstance(result, Reply):
                    await answer.reply(result)
                else:
                    await answer.stream(result)
        finally:
            watch.cancel()

    def _route(self, path: str) -> Route | Mount | None:
        if path in self._exact:
            return self._exact[path]
        for mount in self._mounts():
            if path == mount.path or path.startswith(mount.path + "/"):
                return mount
        return next((route for route in self._below if path.startswith(route.path)), None)

    def _handler(self, route: Route | None, request: Request) -> Handler:
        """Raises NotFound or MethodNotAllowed."""
        if route is None:
            raise NotFound(f"Invalid URL ({request.method} {request.path[:200]})")
        method = "GET" if request.method == "HEAD" else request.method
        if method not in route.methods:
            raise MethodNotAllowed(request, route)
        return route.methods[method]


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"

    def __init__(self, request: Request, route: Route) -> None:
        allowed = ", ".join(route.methods)
        super().__init__(
            f"Not allowed to {request.method} on {request.path[:200]}. Allowed: {allowed}.",
            headers={"allow": allowed},
        )


async def _watch(receive: Receive, request: Request) -> None:
    """Ends the request when its client goes away: nothing else would tell a plain handler."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            request.running.interrupt(ClientGone())
            return


def _internal_caller(headers: Mapping[str, str]) -> Caller:
    deadline, blocks = headers.get(internal.DEADLINE), headers.get(internal.BLOCKS)
    return Caller(
        is_internal=True,
        lane="batch" if headers.get(internal.LANE) == internal.BATCH else "interactive",
        served_name=headers.get(internal.SERVED_NAME),
        owner=headers.get(internal.OWNER, ""),
        priority=int(headers.get(internal.PRIORITY, "0")),
        deadline=float(deadline) if deadline else None,
        blocks=tuple(blocks.split(",")[: internal.MAX_BLOCKS]) if blocks else (),
    )


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("latin-1"), expected.encode())


def _masked(key: str) -> str:
    """Enough to know it again: the first three characters and the last four."""
    return f"{key[:3]}…{key[-4:]}" if len(key) > 12 else "…"


async def _other(scope: Scope, receive: Receive, send: Send) -> None:
    """Start-up and shut-down messages are acknowledged; web sockets are closed."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
