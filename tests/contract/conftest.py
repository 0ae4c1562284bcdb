"""A server of the tiny model's tokenizer and a scripted engine, asked without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skirret_api.launch import ServerSettings
from skirret_server.api.answer import Pace
from skirret_server.api.app import Access, App
from skirret_server.api.application import application
from skirret_server.api.cors import Cors
from skirret_server.api.inprocess import Call, Response, ask
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.served import Served
from skirret_server.core import ModelInfo
from skirret_server.grammar.compiler import GrammarCompiler
from skirret_server.load.progress import LoadStatus, Progress
from skirret_server.serve import vocabulary
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

    def __post_init__(self) -> None:
        self.grammars = GrammarCompiler(lambda: vocabulary(self.tokenizer, self.engine.info))
        self.lifecycle = Lifecycle(lambda: LoadStatus("loading weights", 40.0, 1e8, 3.2))
        self.lifecycle.serve(self.served)
        self.lifecycle.has_generated = True
        self.app: App = application(
            self.lifecycle, self.access, pace=self.pace, cors=self.cors, tells_accounting=True
        )

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
        return await ask(self.app, "POST", path, data, json_headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Response:
        return await ask(self.app, "GET", path, b"", headers)

    def call(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Call:
        return Call(self.app, "POST", path, json.dumps(body).encode(), headers)

    async def chat(self, **extra: Any) -> Response:
        return await self.post(CHAT, chat_body(**extra))

    async def text(self, **extra: Any) -> Response:
        return await self.post(TEXT, text_body(**extra))

    async def events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The events of a stream; fails unless it ends with [DONE] and a blank line."""
        response = await self.post(path, {**body, "stream": True})
        assert response.status == 200, response.body
        assert response.body.endswith(b"data: [DONE]\n\n")
        lines = response.body.decode().split("\n\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    async def both(self, **extra: Any) -> dict[str, Any]:
        """A plain chat answer, after comparing the stream with it, field by field."""
        plain = await self.chat(**extra)
        assert plain.status == 200, plain.body
        options = {"stream_options": {"include_usage": True}}
        joined = joined_chat(await self.events(CHAT, chat_body(**extra, **options)))
        answer: dict[str, Any] = plain.json()
        for varying in ("id", "created", "object"):
            joined.pop(varying)
            answer.pop(varying)
        for whole in (joined, answer):
            for choice in whole["choices"]:
                message = choice["message"]
                message["content"] = message["content"] or None  # null beside calls when whole
                for call in message.get("tool_calls", ()):
                    assert call.pop("id").startswith("call_")
        for usage in (joined["usage"], answer["usage"]):
            usage.pop("prompt_tokens_details")  # the second finds the first one's prefix
        assert joined == answer
        for choice in answer["choices"]:
            if "tool_calls" not in choice["message"]:
                choice["message"]["content"] = choice["message"]["content"] or ""
        return answer

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
    *chunks, last = events
    assert last["choices"] == []
    whole = {key: value for key, value in last.items() if key != "choices"}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        assert chunk["usage"] is None
        assert {key: chunk[key] for key in ("id", "created", "model")} == {
            key: last[key] for key in ("id", "created", "model")
        }
        for part in chunk["choices"]:
            _join(choices.setdefault(part["index"], {}), part)
    return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _join(choice: dict[str, Any], part: dict[str, Any]) -> None:
    if not choice:
        assert part["delta"].pop("role") == "assistant"
        choice |= {"index": part["index"], "logprobs": None, "message": {"role": "assistant"}}
        choice["message"] |= part["delta"]
        return
    assert "finish_reason" not in choice, "nothing may follow the end of a choice"
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
        assert set(part) == {"index", "id", "type", "function"}
        assert part["function"]["arguments"] == ""
        calls.append({key: part[key] for key in ("id", "type", "function")})
        return
    assert part["index"] == len(calls) - 1
    assert set(part) == {"index", "function"}
    assert set(part["function"]) == {"arguments"}
    calls[-1]["function"]["arguments"] += part["function"]["arguments"]


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
def saying(folder: Path, template: ChatTemplate) -> Saying:
    """A server whose engine emits exactly these byte strings as tokens; numbers are token ids.

    Then it emits an end token, unless `script` says otherwise.
    """

    def make(
        *pieces: str | bytes | int, script: dict[str, Any] | None = None, **options: Any
    ) -> Server:
        tokenizer, tokens = _spelling(folder, pieces)
        engine = ScriptedEngine(Script(**{"tokens": tokens, **(script or {})}), _INFO)
        return Server(options.pop("engine", engine), tokenizer, template, **options)

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


@pytest.fixture(scope="session")
def tiny_engine(folder: Path) -> Iterator[Any]:
    """The real engine on two random layers."""
    from skirret_server import engine

    settings = ServerSettings(max_total_tokens=8192, dtype="float32", page_size=16)
    opened = engine.open(settings, folder, Progress())
    yield opened
    asyncio.run(opened.close())


@pytest.fixture
async def real(
    tiny_engine: Any, tokenizer: Tokenizer, template: ChatTemplate
) -> AsyncIterator[Server]:
    server = Server(tiny_engine, tokenizer, template)
    yield server
    await server.grammars.close()
