"""A server of the tiny model's tokenizer and a scripted engine, asked without a socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skirret_api import internal
from skirret_api.launch import ServerSettings
from skirret_api.tenants import FolderStore
from skirret_batch.completions import AsgiCompletions
from skirret_batch.folder import Folder
from skirret_batch.http import files_and_batches
from skirret_batch.worker import Worker, WorkerSettings
from skirret_server import serve
from skirret_server.api.answer import Pace
from skirret_server.api.app import Access, App, Mount
from skirret_server.api.application import application
from skirret_server.api.cors import Cors
from skirret_server.api.inprocess import Call, Response, ask
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.served import Served
from skirret_server.conformance import events_of, judge, responses_events
from skirret_server.core import ModelInfo
from skirret_server.grammar.compiler import GrammarCompiler
from skirret_server.load.progress import LoadStatus, Progress
from skirret_server.testing import (
    END_OF_TEXT,
    IM_END,
    TINY_CONTEXT,
    TINY_VOCABULARY,
    Script,
    ScriptedEngine,
    tiny_model,
)
from skirret_server.text.template import ChatTemplate, find_template
from skirret_server.text.token_bytes import byte_letters
from skirret_server.text.tokenizer import Tokenizer, read_config

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass
class Server:
    """What a test talks to: the application, and the engine behind it."""

    engine: Any
    tokenizer: Tokenizer
    template: ChatTemplate | None
    access: Access = field(default_factory=Access)
    pace: Pace = field(default_factory=Pace)
    names: tuple[str, ...] = ("tiny", "org/tiny")
    cors: Cors = field(default_factory=Cors)
    settings: dict[str, Any] = field(default_factory=dict)  # more of what is served
    storage: Path = Path()  # of files and batches

    def __post_init__(self) -> None:
        self.grammars = GrammarCompiler(lambda: serve.vocabulary(self.tokenizer, self.engine.info))
        self.lifecycle = Lifecycle(lambda: LoadStatus("loading weights", 40.0, 1e8, 3.2))
        self.lifecycle.serve(self.served)
        self.lifecycle.has_generated = True
        self.app: App = application(
            self.lifecycle,
            self.access,
            pace=self.pace,
            cors=self.cors,
            tells_accounting=True,
            mounts=self._mounts,
        )
        self._batches: _Batches | None = None

    @property
    def served(self) -> Served:
        return Served(
            names=self.names,
            path="/models/tiny",
            engine=self.engine,
            tokenizer=self.tokenizer,
            template=self.template,
            grammars=self.grammars,
            created=1_700_000_000,
            **self.settings,
        )

    async def post(
        self, path: str, body: Any, headers: Mapping[str, str] | None = None
    ) -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        json_headers = {"content-type": "application/json", **(headers or {})}
        return await self.ask("POST", path, data, json_headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Response:
        return await self.ask("GET", path, b"", headers)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Response:
        """Every answer is judged by OpenAI's types."""
        response = await ask(self.app, method, path, body, headers)
        judge(method, path, response.status, response.headers, response.body)
        return response

    def call(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Call:
        return Call(self.app, "POST", path, json.dumps(body).encode(), headers)

    async def chat(self, **extra: Any) -> Response:
        return await self.post(CHAT, chat_body(**extra))

    async def text(self, **extra: Any) -> Response:
        return await self.post(TEXT, text_body(**extra))

    async def events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The events of a stream that was opened."""
        response = await self.post(path, {**body, "stream": True})
        assert response.status == 200, response.body
        return events_of(response.body)

    def responses_events(self, body: bytes) -> list[dict[str, Any]]:
        return responses_events(body)

    async def lines(self, path: str, bodies: Sequence[Any]) -> list[tuple[int, Any]]:
        """Statuses and bodies of the answers to a batch's lines."""
        return await self._opened().answers(path, bodies)

    async def upload(self, data: bytes) -> str:
        """A batch's input file, by its id."""
        return await self._opened().upload(data)

    async def every_way(self, **extra: Any) -> dict[str, Any]:
        """A chat's answer: the same plain, streamed, as one of two, and in a batch."""
        return await self._every_way(CHAT, chat_body(**extra))

    async def text_every_way(self, **extra: Any) -> dict[str, Any]:
        return await self._every_way(TEXT, text_body(**extra))

    async def _every_way(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        plain = await self.post(path, body)
        assert plain.status == 200, plain.body
        answer: dict[str, Any] = _normal(plain.json())
        joined = joined_chat if path == CHAT else joined_text
        options = {"stream_options": {"include_usage": True}}
        if body.get("best_of", 1) <= body.get("n", 1):
            assert_alike(_normal(joined(await self.events(path, {**body, **options}))), answer)
        ((status, line),) = await self.lines(path, [body])
        assert status == 200, line
        assert_alike(_normal(line), answer)
        if "n" not in body and "best_of" not in body:
            await self._twice(path, body, answer)
        return answer

    async def _twice(self, path: str, body: dict[str, Any], once: dict[str, Any]) -> None:
        response = await self.post(path, {**body, "n": 2})
        assert response.status == 200, response.body
        both = _normal(response.json())["choices"]
        is_certain = body["temperature"] == 0
        for index, choice in enumerate(once["choices"]):
            for twin in both[2 * index : 2 * index + 1 + is_certain]:
                assert_alike({**twin, "index": index}, choice)

    async def refused(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and error: the same plain, streamed and as one of two."""
        plain = await self.post(path, body)
        error = plain.json()["error"]
        for way in ({"stream": True}, {"n": 2}):
            if body.keys() & {*way, "stream_options", "best_of"}:
                continue
            response = await self.post(path, {**body, **way})
            assert (response.status, response.json()["error"]) == (plain.status, error)
        return plain.status, error

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """The port on which it answers, as the real process answers."""
        with socket.create_server(("127.0.0.1", 0)) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            serve.give_up_unread(door, milliseconds=300)
            async with serve.listening(self.app, door):
                yield door.getsockname()[1]

    async def is_alive(self) -> bool:
        health = await self.get("/health")
        return (await self.chat()).status == 200 and health.status == 200

    async def accounting(self) -> dict[str, int]:
        found: dict[str, int] = (await self.get("/debug/accounting")).json()
        return found

    async def until_idle(self) -> None:
        async with asyncio.timeout(1.0):
            while self.lifecycle.running or self.engine.running:
                await asyncio.sleep(0)

    def _opened(self) -> _Batches:
        if self._batches is None:
            self._batches = _Batches(self, self.storage)
        return self._batches

    def _mounts(self) -> list[Mount]:
        return self._batches.mounts if self._batches else []


class _Batches:
    """Files and batches of a server, in its own process."""

    def __init__(self, server: Server, folder: Path) -> None:
        store = Folder(FolderStore(path=str(folder)), durable=False)
        app = files_and_batches(lambda scope: store)
        self.mounts = [Mount(path, app) for path in ("/v1/files", "/v1/batches")]
        headers = {internal.TOKEN: server.access.internal_token, internal.LANE: internal.BATCH}
        self._completions = AsgiCompletions(server.app, headers, 60)
        self._store = store
        self._server = server

    async def answers(self, path: str, bodies: Sequence[Any]) -> list[tuple[int, Any]]:
        lines = [
            json.dumps({"custom_id": str(number), "method": "POST", "url": path, "body": body})
            for number, body in enumerate(bodies)
        ]
        file = await self.upload("\n".join(lines).encode())
        wanted = {"input_file_id": file, "endpoint": path, "completion_window": "24h"}
        batch = (await self._ask("POST", "/v1/batches", json.dumps(wanted).encode())).json()["id"]
        await Worker(self._store, batch, self._completions, _AT_ONCE, slot="test").live()
        ended = (await self._ask("GET", f"/v1/batches/{batch}")).json()
        assert ended["status"] == "completed", ended
        counts = ended["request_counts"]
        assert counts["total"] == counts["completed"] + counts["failed"] == len(bodies)
        found = {**await self._results(path, ended["output_file_id"], {200}),
                 **await self._results(path, ended["error_file_id"], {400, 404})}  # fmt: skip
        return [found[str(number)] for number in range(len(bodies))]

    async def _results(
        self, path: str, file: str | None, statuses: set[int]
    ) -> dict[str, tuple[int, Any]]:
        found: dict[str, tuple[int, Any]] = {}
        if file is None:
            return found
        content = await self._ask("GET", f"/v1/files/{file}/content")
        for line in content.body.decode("ascii").splitlines():
            said = json.loads(line)
            response = said["response"]
            assert said["error"] is None
            assert response["status_code"] in statuses
            headers = {"x-request-id": response["request_id"], "content-type": "application/json"}
            body = json.dumps(response["body"]).encode()
            judge("POST", path, response["status_code"], headers, body)
            found[said["custom_id"]] = response["status_code"], response["body"]
        return found

    async def upload(self, data: bytes) -> str:
        form = (
            b'--cut\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--cut\r\n'
            b'content-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
            + data
            + b"\r\n--cut--\r\n"
        )
        kind = {"content-type": "multipart/form-data; boundary=cut"}
        found: str = (await self._ask("POST", "/v1/files", form, kind)).json()["id"]
        return found

    async def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Response:
        key = {"authorization": f"Bearer {self._server.access.api_key}", **(headers or {})}
        response = await self._server.ask(method, path, body, key)
        assert response.status == 200, response.body
        return response


# Not 0.0: the keeper would spin, and take the interpreter from the engine.
_AT_ONCE = WorkerSettings(flush_after=0.02, poll=0.01, report_after=0.01, retry_first=0.01)


def chat_body(**extra: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 64,
        "temperature": 0,
        **extra,
    }


def text_body(**extra: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hi", "max_tokens": 64, "temperature": 0, **extra}


def joined_chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole object that the chunks of a stream add up to."""
    return _joined(events, _join)


def joined_text(events: list[dict[str, Any]]) -> dict[str, Any]:
    return _joined(events, _join_text)


def _joined(
    events: list[dict[str, Any]], join: Callable[[dict[str, Any], dict[str, Any]], None]
) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"]:
            join(choices.setdefault(part["index"], {}), part)
    return {**events[-1], "choices": [choices[index] for index in sorted(choices)]}


def _join_text(choice: dict[str, Any], part: dict[str, Any]) -> None:
    if not choice:
        choice |= {"index": part["index"], "text": "", "logprobs": None}
    choice["text"] += part["text"]
    if part["logprobs"] is not None:
        empty: dict[str, Any] = {name: [] for name in part["logprobs"]}
        found = choice["logprobs"] = choice["logprobs"] or empty
        for name, values in part["logprobs"].items():
            found[name] = None if values is None else [*(found[name] or ()), *values]
    if part["finish_reason"] is not None:
        choice |= {key: part[key] for key in ("finish_reason", "matched_stop")}


def _join(choice: dict[str, Any], part: dict[str, Any]) -> None:
    if not choice:
        choice |= {"index": part["index"], "logprobs": None, "message": {"role": "assistant"}}
        choice["message"] |= part["delta"]
        return
    choice["message"]["content"] += part["delta"].pop("content", "")
    if thought := part["delta"].pop("reasoning_content", ""):
        choice["message"].setdefault("reasoning_content", "")
        choice["message"]["reasoning_content"] += thought
    for call in part["delta"].pop("tool_calls", ()):
        _join_call(choice["message"].setdefault("tool_calls", []), call)
    assert not part["delta"]
    if part["logprobs"] is not None:
        found = choice["logprobs"] or {"content": [], "refusal": None}
        found["content"] += part["logprobs"]["content"]
        choice["logprobs"] = found
    if part["finish_reason"] is not None:
        choice |= {key: part[key] for key in ("finish_reason", "matched_stop")}


def _join_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    if part["index"] == len(calls):
        calls.append({key: part[key] for key in ("id", "type", "function")})
        return
    calls[-1]["function"]["arguments"] += part["function"]["arguments"]


def _normal(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two answers to one request, or between their forms."""
    answer = {key: answer[key] for key in answer if key not in ("id", "created", "object")}
    answer["usage"] = {**answer["usage"]}
    answer["usage"].pop("prompt_tokens_details")  # the second finds the first one's prefix
    for choice in answer["choices"]:
        if choice["logprobs"] == {"content": [], "refusal": None}:
            choice["logprobs"] = None  # of no tokens; a stream has no chunk to put them in
        message = choice.get("message", {})
        for call in message.get("tool_calls", ()):
            assert call.pop("id").startswith("call_")
        if "content" in message:  # null beside calls when whole
            content = message["content"] or ""
            message["content"] = content or (None if "tool_calls" in message else "")
    return answer


def assert_alike(one: Any, other: Any, path: str = "") -> None:
    """Equal, but for the last digits of numbers: batches of other sizes compute other ones."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_alike(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), path
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_alike(left, right, f"{path}[{index}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, abs=1e-3), path
    else:
        assert one == other, path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="session")
def template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(find_template(folder) or "", tokenizer.named_tokens)


Saying = Callable[..., Server]


@pytest.fixture
def saying(folder: Path, template: ChatTemplate, tmp_path: Path) -> Saying:
    """A server whose engine emits exactly these byte strings as tokens; numbers are token ids.

    Then it emits an end token, unless `script` says otherwise.
    """

    def make(
        *pieces: str | bytes | int, script: dict[str, Any] | None = None, **options: Any
    ) -> Server:
        tokenizer, tokens = _spelling(folder, pieces)
        engine = ScriptedEngine(Script(**{"tokens": tokens, **(script or {})}), _INFO)
        options = {"engine": engine, "storage": tmp_path, **options}
        return Server(tokenizer=tokenizer, template=template, **options)

    return make


_INFO = ModelInfo(
    vocab_size=TINY_VOCABULARY + 64,
    context_length=TINY_CONTEXT,
    eos_token_ids=frozenset({END_OF_TEXT, IM_END}),
    max_total_tokens=4 * TINY_CONTEXT,
)


def _spelling(folder: Path, pieces: Sequence[str | bytes | int]) -> tuple[Tokenizer, list[int]]:
    """The tiny tokenizer with a token more for each piece, and the ids of the pieces."""
    source = json.loads((folder / "tokenizer.json").read_text())
    vocabulary, letters = source["model"]["vocab"], byte_letters()
    # Named here too, or they would be moved behind the tokens that are put in.
    vocabulary |= {token["content"]: token["id"] for token in source["added_tokens"]}
    tokens = []
    for piece in pieces:
        if isinstance(piece, int):
            tokens.append(piece)
            continue
        data = piece.encode() if isinstance(piece, str) else piece
        spelled = "".join(letters[byte] for byte in data)
        tokens.append(vocabulary.setdefault(spelled, len(vocabulary)))
    return Tokenizer(json.dumps(source), read_config(folder)), tokens


@pytest.fixture
def chat() -> Callable[..., dict[str, Any]]:
    return chat_body


@pytest.fixture
def text() -> Callable[..., dict[str, Any]]:
    return text_body


Opening = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="session")
def opening() -> Opening:
    """Opens the real engine on a folder's model."""

    @contextmanager
    def opened(folder: Path, **options: Any) -> Iterator[Any]:
        from skirret_server import engine

        settings = {"max_total_tokens": 8192, "dtype": "float32", "page_size": 16, **options}
        found = engine.open(ServerSettings.model_validate(settings), folder, Progress())
        try:
            yield found
        finally:
            asyncio.run(found.close())

    return opened


@pytest.fixture(scope="session")
def tiny_engine(folder: Path, opening: Opening) -> Iterator[Any]:
    """The real engine on two random layers."""
    with opening(folder) as engine:
        yield engine


@pytest.fixture
async def real(
    tiny_engine: Any, tokenizer: Tokenizer, template: ChatTemplate, tmp_path: Path
) -> AsyncIterator[Server]:
    server = Server(tiny_engine, tokenizer, template, storage=tmp_path)
    yield server
    await server.grammars.close()
