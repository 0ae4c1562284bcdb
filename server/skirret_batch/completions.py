"""Who answers a batch's lines: the gateway over HTTP, or the server in this process.

CompletionsError
├── Unreachable   the request was not carried out: nobody there, or nobody ready
├── Broken        it was taken, and the connection ended before the answer: the engine may be dead
└── TimedOut      it was taken, and no answer came in time
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
from pydantic_core import from_json

from skirret_api import internal
from skirret_batch.plan import TOKENS_PER_BYTE

_REFUSED = frozenset({400, 413, 415})  # for what was asked, whoever asks
_LONGEST_PAUSE = 120.0  # seconds; a longer Retry-After is not believed


class CompletionsError(Exception):
    """No answer to one request; the message says why, and never what was asked."""


class Unreachable(CompletionsError):
    pass


class Broken(CompletionsError):
    pass


class TimedOut(CompletionsError):
    pass


@dataclass(frozen=True, slots=True)
class Load:
    running: int
    waiting: int
    kv_usage: float  # 0..1


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, whoever gave it. Header names are lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def load(self) -> Load | None:
        """What the server says of itself in `x-skirret-load`."""
        try:
            running, waiting, kv_usage = self.headers[internal.LOAD].split(",")
            return Load(int(running), int(waiting), float(kv_usage))
        except (KeyError, ValueError):
            return None

    @property
    def retry_after(self) -> float | None:
        """Seconds, when the answer names them."""
        try:
            return min(max(0.0, float(self.headers["retry-after"])), _LONGEST_PAUSE)
        except (KeyError, ValueError):
            return None

    @property
    def may_be_repeated(self) -> bool:
        """False when the gateway says that the request was what took too long."""
        return self.headers.get("x-should-retry") != "false"


@dataclass(frozen=True, slots=True)
class Template:
    """What makes a prompt of a chat, and about how many tokens of it."""

    source: str | None = None  # None: the model has none
    tokens: Mapping[str, str] = field(default_factory=dict)  # special ones by their names
    tokens_per_byte: float = TOKENS_PER_BYTE


@dataclass(frozen=True, slots=True)
class Turn:
    """What decides when a line is run, and beside which others."""

    deadline: float  # of its batch, in seconds since the epoch
    priority: int = 0  # of its batch
    group: str = ""  # the same for lines whose prompts begin alike; empty for one like no other

    @property
    def headers(self) -> dict[str, str]:
        return {
            internal.DEADLINE: str(int(self.deadline)),
            internal.PRIORITY: str(self.priority),
            internal.GROUP: self.group,
        }


class Completions(Protocol):
    async def complete(self, endpoint: str, body: bytes, turn: Turn) -> Answer:
        """Raises CompletionsError. Cancelling it aborts the work."""

    async def model(self, name: str) -> str | None:
        """What `name` is a name of (aliases give one value); None for no model of ours.

        Raises CompletionsError.
        """

    async def template(self, name: str) -> Template:
        """Asks a server of this model, waking one if need be. Raises CompletionsError."""


class HttpCompletions:
    """The gateway, asked with the namespace's internal token."""

    def __init__(self, gateway: str, token: str, timeout: float) -> None:
        self._gateway = gateway.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=10),
        )

    async def complete(self, endpoint: str, body: bytes, turn: Turn) -> Answer:
        return await self._send("POST", endpoint, body, turn.headers)

    async def model(self, name: str) -> str | None:
        return _identity(await self._send("GET", _model_path(name), None, {}))

    async def template(self, name: str) -> Template:
        path = f"/get_model_info?model={quote(name, safe='')}"
        return _template(await self._send("GET", path, None, {}))

    async def close(self) -> None:
        await self._session.close()

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        url = self._gateway + path
        try:
            async with self._session.request(
                method, url, data=body, headers={**self._headers, **headers}
            ) as response:
                answer = await response.read()
                names = {name.lower(): value for name, value in response.headers.items()}
                return Answer(response.status, answer, names)
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"{self._gateway}: {error.strerror or error}") from error
        except aiohttp.ConnectionTimeoutError as error:
            raise Unreachable(f"{self._gateway}: no connection in time") from error
        except TimeoutError as error:
            raise TimedOut(f"{self._gateway}: no answer in time") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Broken(f"{self._gateway}: {type(error).__name__}") from error


def counted_tokens(answer: Answer) -> int | None:
    """Of an answer of `/tokenize`; none when the prompt is refused, None when nobody knows."""
    if answer.status in _REFUSED:
        return 0
    if answer.status != 200:
        return None
    count = from_json(answer.body)["count"]
    return sum(count) if isinstance(count, list) else int(count)


Message = MutableMapping[str, Any]
Asgi = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


class AsgiCompletions:
    """An ASGI application in this process, asked without a socket."""

    def __init__(self, app: Asgi, headers: Mapping[str, str], timeout: float) -> None:
        self._app = app
        self._headers = headers
        self._timeout = timeout

    async def complete(self, endpoint: str, body: bytes, turn: Turn) -> Answer:
        return await self._send("POST", endpoint, body, turn.headers)

    async def model(self, name: str) -> str | None:
        return _identity(await self._send("GET", _model_path(name), b"", {}))

    async def template(self, name: str) -> Template:
        return _template(await self._send("GET", "/get_model_info", b"", {}))

    async def tokens(self, asked: Mapping[str, Any]) -> int | None:
        """See `counted_tokens`."""
        return counted_tokens(await self._send("POST", "/tokenize", json.dumps(asked).encode(), {}))

    async def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        exchange = _Exchange(body)
        sent = {"content-type": "application/json", "host": "localhost", **self._headers, **headers}
        scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path.replace("%2F", "/"),
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 0),
            "server": ("localhost", 80),
        }
        try:
            async with asyncio.timeout(self._timeout):
                await self._app(scope, exchange.receive, exchange.send)
        except TimeoutError as error:
            raise TimedOut("the server in this process gave no answer in time") from error
        return exchange.answer()


class _Exchange:
    """One request to an ASGI application, and what it sends back."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 500
        self._headers: dict[str, str] = {}
        self._answer = bytearray()
        self._gone = asyncio.Event()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()  # we never hang up: cancelling the task does
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {
                name.decode().lower(): value.decode("latin-1")
                for name, value in message.get("headers", ())
            }
        else:
            self._answer += message.get("body", b"")
            if not message.get("more_body", False):
                self._gone.set()

    def answer(self) -> Answer:
        return Answer(self._status, bytes(self._answer), self._headers)


def _model_path(name: str) -> str:
    return "/v1/models/" + quote(name, safe="")


def _identity(answer: Answer) -> str | None:
    """`root` of the model object where there is one, else its `id`."""
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise Unreachable(f"status {answer.status} when asked for a model")
    model = from_json(answer.body)
    return str(model.get("root") or model["id"])


def _template(answer: Answer) -> Template:
    if answer.status != 200:
        raise Unreachable(f"status {answer.status} when asked for a model's template")
    try:
        said = from_json(answer.body)
        return Template(
            source=said["chat_template"],
            tokens={str(name): str(token) for name, token in said["special_tokens"].items()},
            tokens_per_byte=float(said["tokens_per_byte"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreachable(f"unreadable answer when asked for a model's template: {error}") from (
            error
        )
