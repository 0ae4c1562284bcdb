"""What the API itself costs: a request from its bytes to the engine's door, a token from there to
the socket. Run: python benchmarks/surface.py
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skirret_server.api.app import Access, App
from skirret_server.api.application import application
from skirret_server.api.asks import chat_ask
from skirret_server.api.exchange import Request
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.served import Served
from skirret_server.core import GenerateRequest, Sampling
from skirret_server.grammar.compiler import GrammarCompiler
from skirret_server.load.progress import LoadStatus
from skirret_server.serve import vocabulary
from skirret_server.testing import TINY_VOCABULARY, Script, ScriptedEngine, tiny_model
from skirret_server.text.template import ChatTemplate, find_template
from skirret_server.text.tokenizer import Tokenizer

ROUNDS = 15
CHAT = "/v1/chat/completions"


def request_of_2kb() -> bytes:
    """A chat with a system prompt, a few turns, a tool and the usual parameters: 2 kB."""
    turn = "The roots of the skirret grow in clusters; they were eaten in winter, boiled. "
    messages: list[dict[str, Any]] = [{"role": "system", "content": turn}]
    for _ in range(4):
        messages += [{"role": "user", "content": turn * 2}, {"role": "assistant", "content": turn}]
    body = {
        "model": "tiny",
        "messages": [*messages, {"role": "user", "content": [{"type": "text", "text": turn}]}],
        "temperature": 0.3,
        "top_p": 0.95,
        "max_tokens": 128,
        "presence_penalty": 0.2,
        "stop": ["\n\n", "THE END"],
        "seed": 42,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": {"50": -1, "51": 2.5},
        "metadata": {"team": "roots"},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "harvest",
                    "parameters": {
                        "type": "object",
                        "properties": {"row": {"type": "integer"}, "bed": {"type": "string"}},
                    },
                },
            }
        ],
    }
    return json.dumps(body).encode()


def validation_seconds(body: bytes, count: int = 200) -> float:
    """Of one request: bytes to a checked ask."""

    def one() -> None:
        request = Request("r", "POST", CHAT, "", {}, 0.0, body=body)
        chat_ask(request.json(), TINY_VOCABULARY)

    return best(one, count)


async def token_seconds(engine_tokens: int = 2000, **extra: Any) -> float:
    """Of one token of a stream: from the engine's update to the bytes handed to the socket,
    less what the scripted engine itself takes.
    """
    with tempfile.TemporaryDirectory() as folder:
        tiny_model(Path(folder))
        engine = ScriptedEngine(Script(tokens=b"x" * engine_tokens, ends=None))
        app = _application(Path(folder), engine)
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": engine_tokens,
            "stream": True,
            **extra,
        }
        data = json.dumps(body).encode()
        whole = [await _timed(lambda: _stream(app, data)) for _ in range(ROUNDS)]
        alone = [await _timed(lambda: _drained(engine, engine_tokens)) for _ in range(ROUNDS)]
        return (min(whole) - min(alone)) / engine_tokens


async def _stream(app: Any, body: bytes) -> None:
    """As a web server asks the application, without one."""
    bodies = [body]

    async def receive() -> dict[str, Any]:
        if not bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await app(scope, receive, send)


def _application(folder: Path, engine: ScriptedEngine) -> App:
    tokenizer = Tokenizer.load(folder)
    lifecycle = Lifecycle(lambda: LoadStatus("ready"))
    lifecycle.serve(
        Served(
            names=("tiny",),
            path="tiny",
            engine=engine,
            tokenizer=tokenizer,
            template=ChatTemplate(find_template(folder) or "", tokenizer.named_tokens),
            grammars=GrammarCompiler(lambda: vocabulary(tokenizer, engine.info)),
        )
    )
    return application(lifecycle, Access())


async def _drained(engine: ScriptedEngine, count: int) -> None:
    async for _ in engine.generate(GenerateRequest("r", [1], Sampling(max_tokens=count))):
        pass


async def _timed(work: Callable[[], Any]) -> float:
    gc.collect()
    started = time.process_time()
    await work()
    return time.process_time() - started


def best(work: Callable[[], None], count: int) -> float:
    """The least of several rounds, each an average: others on the machine only add."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(count):
            work()
        rounds.append((time.process_time() - started) / count)
    return min(rounds)


def main() -> None:
    body = request_of_2kb()
    parsing = validation_seconds(body)
    print(f"validation and parsing of {len(body)} bytes: {parsing * 1e3:.3f} ms (at most 0.3)")
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "stop strings": {"stop": ["\n\n", "THE END"]},
        "three log-probabilities": {"logprobs": True, "top_logprobs": 3},
    }
    for name, extra in kinds.items():
        costs = asyncio.run(token_seconds(**extra))
        print(f"streaming a token, {name}: {costs * 1e6:.1f} µs (at most 25 for a plain one)")


if __name__ == "__main__":
    main()
