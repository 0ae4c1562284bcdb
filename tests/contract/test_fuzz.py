"""Bodies built from the parser's own tables, with one thing in them changed: each is answered, or
refused by the name of what was changed, and the server lives.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from skirret_server.api import shapes
from skirret_server.api.parameters import (
    ABORT,
    CHAT,
    COMPLETION,
    DETOKENIZE,
    GENERATE,
    TOKENIZE,
    Parameter,
)

CHAT_PATH = "/v1/chat/completions"

# Values that a shape alone does not make: small, so that the answer is quick.
KNOWN: Mapping[str, SearchStrategy[Any]] = {
    "model": st.sampled_from(["tiny", "org/tiny", "default"]),
    "max_tokens": st.integers(8, 12),
    "max_completion_tokens": st.integers(8, 12),
    "max_new_tokens": st.integers(8, 12),
    "min_tokens": st.integers(0, 8),
    "min_new_tokens": st.integers(0, 8),
    "n": st.integers(1, 3),
    "top_k": st.sampled_from([-1, 1, 5]),
    "best_of": st.just(3),
    "logit_bias": st.dictionaries(st.integers(0, 300).map(str), st.integers(-100, 100), max_size=3),
    "stop_token_ids": st.lists(st.integers(0, 300), max_size=3),
    "input_ids": st.lists(st.integers(0, 300), min_size=1, max_size=5),
    "tokens": st.lists(st.integers(0, 300), max_size=5),
    "prompt": st.text(min_size=1, max_size=9)
    | st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=2),
    "text": st.text(min_size=1, max_size=9),
    "rid": st.text("abc", min_size=1, max_size=3),
    "regex": st.sampled_from(["ok", "[a-c]{2}", "(x|y)z?"]),
    "ebnf": st.just('root ::= "ok"'),
    "json_schema": st.sampled_from([{"type": "boolean"}, '{"const": 1}', True]),
    "stop_regex": st.just("[0-9]z"),
    "response_format": st.sampled_from(
        [
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}},
        ]
    ),
    "structural_tag": st.just(
        {
            "structures": [{"begin": "<a>", "schema": {"type": "boolean"}, "end": "</a>"}],
            "triggers": ["<a"],
        }
    ),
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["a", "b"]), st.booleans()),
    "sampling_params": st.deferred(lambda: _sampling()),
    "schema": st.just({"type": "boolean"}),
    "parameters": st.just({"type": "object", "properties": {}}),
}
ALIASES = {
    "guided_regex": "regex",
    "guided_json": "json_schema",
    "json": "json_schema",
    "guided_grammar": "ebnf",
    "grammar": "ebnf",
}
# One of them at most.
STRUCTURES = ("response_format", "regex", "json_schema", "ebnf", "guided_regex", "guided_json",
              "guided_choice", "guided_grammar", "structured_outputs",
              "structural_tag")  # fmt: skip
# What is refused may be named by what it does not agree with.
TOGETHER = (
    {"stream", "stream_options", "best_of", "n"},
    {"logprobs", "top_logprobs"},
    {"tools", "tool_choice", *STRUCTURES},
    {"messages", "continue_final_message", "max_tokens", "max_completion_tokens", "min_tokens",
     "n", "prompt", "text", "input_ids", "sampling_params", "best_of"},
    {"rid", "abort_all"},
)  # fmt: skip


def valid(shape: shapes.Shape, name: str = "") -> SearchStrategy[Any]:
    """Values of this shape."""
    if (name := ALIASES.get(name, name)) in KNOWN:
        return KNOWN[name]
    match shape:
        case shapes.Boolean():
            return st.booleans()
        case shapes.Integer(low, high):
            return st.sampled_from([low, high]) | st.integers(
                max(low, 0), min(high, max(low, 0) + 9)
            )
        case shapes.Decimal(low, high, excludes_low):
            return st.floats(low, high, exclude_min=excludes_low)
        case shapes.String(low, high, pattern):
            letters = "abc_" if pattern else "aé😀<|im_end|>\n\u2028\x00"
            return st.text(letters, min_size=max(low, bool(pattern)), max_size=min(high, 9))
        case shapes.Enum(values):
            return st.sampled_from(values)
        case shapes.Array(item, low, high):
            return st.lists(valid(item), min_size=low, max_size=min(high, low + 2))
        case shapes.Map(value, high):
            return st.dictionaries(st.text("ab", max_size=2), valid(value), max_size=min(high, 3))
        case shapes.Object(fields):
            return bodies({key: (one.shape, one.required) for key, one in fields.items()})
        case shapes.Tagged(tag, variants):
            usual = {k: v for k, v in variants.items() if not _is_refused(v)}
            return st.sampled_from(sorted(usual)).flatmap(
                lambda key: valid(usual[key]).map(lambda value: {**value, tag: key})
            )
        case shapes.Either(choices):
            return st.one_of(*map(valid, choices))
        case shapes.Anything():
            return st.none() | st.booleans() | st.integers() | st.text(max_size=3)
    raise AssertionError(shape)


def _sampling() -> SearchStrategy[Any]:
    return bodies(_options())


@st.composite
def bodies(draw: DrawFn, fields: Mapping[str, tuple[shapes.Shape, bool]]) -> dict[str, Any]:
    """What must be there, and a few things that may."""
    may = [name for name, (shape, must) in fields.items() if not must and not _is_refused(shape)]
    chosen = draw(st.lists(st.sampled_from(may), unique=True, max_size=5)) if may else []
    must = [name for name, (_, must) in fields.items() if must]
    return {name: draw(valid(fields[name][0], name)) for name in (*must, *chosen)}


def whole(table: Mapping[str, Parameter]) -> SearchStrategy[dict[str, Any]]:
    fields = {name: (one.shape, one.required) for name, one in table.items()}
    return bodies(fields).map(agreed)


def agreed(body: dict[str, Any]) -> dict[str, Any]:
    """The body, with what contradicts itself left out."""
    asked = [name for name in STRUCTURES if name in body]
    for name in asked[1:]:
        del body[name]
    _agree_within(body)
    if isinstance(body.get("sampling_params"), dict):
        agreed(body["sampling_params"])
    return body


def _agree_within(body: dict[str, Any]) -> None:
    if not body.get("stream"):
        body.pop("stream_options", None)
    if body.get("logprobs") is not True:
        body.pop("top_logprobs", None)
    if "max_tokens" in body:
        body.pop("max_completion_tokens", None)
    if body.get("stream"):
        body.pop("best_of", None)
    body.pop("continue_final_message", None)
    if "text" in body:
        body.pop("input_ids", None)
    structured = body.get("structured_outputs") or {}
    for name in list(structured)[1:]:
        del structured[name]
    seen: set[str] = set()
    for tool in body.get("tools", ()):
        while tool["function"]["name"] in seen:
            tool["function"]["name"] += "_"
        seen.add(tool["function"]["name"])
    if "tool_choice" in body and not isinstance(body["tool_choice"], str):
        body["tool_choice"] = "auto"
    if body.get("tool_choice") == "required":
        body["tool_choice"] = "none"
    for message in body.get("messages", ()):
        if message["role"] == "assistant":
            message.setdefault("content", "said")


def _options() -> dict[str, tuple[shapes.Shape, bool]]:
    shape = GENERATE["sampling_params"].shape
    assert isinstance(shape, shapes.Either)
    options = shape.shapes[0]
    assert isinstance(options, shapes.Object)
    return {name: (one.shape, False) for name, one in options.fields.items()}


def _is_refused(shape: shapes.Shape) -> bool:
    return isinstance(shape, shapes.Unsupported)


# Whose keys the caller chooses.
OPEN = {"metadata", "logit_bias", "chat_template_kwargs", "parameters", "schema", "json",
        "json_schema", "guided_json"}  # fmt: skip
ODD = [None, True, 0, -1, 1.5, 1.0, -0.0, 2**31, 2**63, 10**400, 1e308, "", "x", "\x00", "é\u2028",
       "x" * 3000, [], {}, [None], [[]], [{}], {"": None}, {"type": "x"}, [0] * 3000,
       json.loads("[" * 120 + "]" * 120)]  # fmt: skip


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON value, itself left out."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def changed(draw: DrawFn, table: Mapping[str, Parameter]) -> tuple[dict[str, Any], Any, str]:
    """A body, the same with one change, and the path of what was changed."""
    body = draw(whole(table))
    wrong = copy.deepcopy(body)
    refused = [name for name, one in table.items() if _is_refused(one.shape)]
    new = draw(st.sampled_from([*refused, "stranger"]) | st.none())
    if new is not None:
        wrong[new] = draw(st.sampled_from(ODD))
        return body, wrong, new
    *way, last = draw(st.sampled_from(sorted(places(wrong), key=str)))
    inner: Any = wrong
    for key in way:
        inner = inner[key]
    how = draw(st.sampled_from(["odd", "odd", "odd", "gone", "stranger"]))
    if how == "gone":
        del inner[last]
    elif how == "stranger" and isinstance(inner[last], dict) and last not in OPEN:
        inner[last]["stranger"] = 1
        return body, wrong, written([*way, last, "stranger"])
    else:
        inner[last] = draw(st.sampled_from(ODD))
    return body, wrong, written([*way, last])


def written(way: Sequence[str | int]) -> str:
    """`messages[0].content`"""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in way).removeprefix(".")


ROUTES = {
    CHAT_PATH: CHAT,
    "/v1/completions": COMPLETION,
    "/generate": {**GENERATE, "text": Parameter(GENERATE["text"].shape, required=True)},
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
    "/abort_request": {**ABORT, "rid": Parameter(ABORT["rid"].shape, required=True)},
}


def fuzz(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[*HealthCheck],
    )


async def check(server: Any, path: str, body: Any, wrong: Any, where: str) -> None:
    right = await server.post(path, body)
    response = await server.post(path, wrong)
    assert server.lifecycle.running == 0
    assert right.status == 200, (body, right.body)
    assert response.status in (200, 400, 404), (wrong, response.body)
    if response.status == 404:
        assert where == "model"
    if where.endswith("stranger"):
        assert response.status == 400
    if response.status == 400:
        param = response.json()["error"]["param"]
        assert param.startswith(where) or where.startswith(param) or near(param, where), (
            where, wrong, response.body)  # fmt: skip


def near(param: str, where: str) -> bool:
    """Whether the two may contradict each other."""
    one, other = (path.partition(".")[0].partition("[")[0] for path in (param, where))
    return any({one, other} <= group for group in TOGETHER)


@pytest.mark.parametrize("path", ROUTES)
def test_one_change_is_refused_by_its_name(saying: Any, path: str) -> None:
    run(saying, path, 120 if path.startswith("/v1") or path == "/generate" else 40)


@pytest.mark.full
@pytest.mark.parametrize("path", ROUTES)
def test_one_change_of_very_many_is_refused_by_its_name(saying: Any, path: str) -> None:
    run(saying, path, 20_000)


def run(saying: Any, path: str, examples: int) -> None:
    with asyncio.Runner() as runner:
        server = saying("o", "k", " 😀".encode()[:3], " 😀".encode()[3:])

        @fuzz(examples)
        @given(case=changed(ROUTES[path]))
        def one(case: tuple[Any, Any, str]) -> None:
            runner.run(check(server, path, *case))

        one()
        assert runner.run(server.is_alive())
        runner.run(server.grammars.close())


def test_a_body_with_bytes_changed_is_answered_or_refused(saying: Any, chat: Any) -> None:
    body = json.dumps(chat(stop=["a"], logprobs=True, stream=True), ensure_ascii=False).encode()
    pieces = st.binary(max_size=3) | st.sampled_from([b"{", b"]", b'"', b"\\u", b"1e999", b"\xff"])
    with asyncio.Runner() as runner:
        server = saying("ok")

        @fuzz(200)
        @given(at=st.integers(0, len(body)), cut=st.integers(0, 4), piece=pieces)
        def one(at: int, cut: int, piece: bytes) -> None:
            response = runner.run(server.post(CHAT_PATH, body[:at] + piece + body[at + cut :]))
            assert response.status in (200, 400, 404)

        one()
        assert runner.run(server.is_alive())


BATCH = {
    "input_file_id": Parameter(shapes.String(), required=True),
    "endpoint": Parameter(shapes.Enum((CHAT_PATH, "/chat/completions")), required=True),
    "completion_window": Parameter(shapes.Enum(("24h", "1h")), required=True),
    "metadata": Parameter(shapes.Map(shapes.String(max=512), max=16, key_max=64)),
    "output_expires_after": Parameter(
        shapes.Object(
            {
                "anchor": shapes.Field(shapes.Enum(("created_at",)), True),
                "seconds": shapes.Field(shapes.Integer(3600, 2_592_000), True),
            }
        )
    ),
}


def test_a_batch_with_one_change_is_refused_by_its_name(saying: Any) -> None:
    with asyncio.Runner() as runner:
        server = saying("ok")
        file = runner.run(server.upload(b'{"custom_id":"a"}'))

        @fuzz(150)
        @given(case=changed(BATCH))
        def one(case: tuple[Any, Any, str]) -> None:
            body, wrong, where = case
            body["input_file_id"] = file
            if not where.startswith("input_file_id"):
                wrong["input_file_id"] = file
            runner.run(check(server, "/v1/batches", body, wrong, where))

        one()
        assert runner.run(server.get("/v1/batches")).status == 200


NAMES = st.sampled_from(["purpose", "file", "expires_after[anchor]", "expires_after[seconds]", "x"])
VALUES = st.sampled_from([b"batch", b"batch_output", b"", b"created_at", b"3600", b"-1", b"1e9",
                          b"\xff\x00", b"{}", b"x" * 5000]) | st.binary(max_size=9)  # fmt: skip
FILES = st.sampled_from([None, "in.jsonl", "a.txt", "", "..", 'a"b.jsonl', "\u2028.jsonl",
                         "x" * 300 + ".jsonl"])  # fmt: skip


def test_any_form_is_stored_or_refused(saying: Any) -> None:
    with asyncio.Runner() as runner:
        server = saying("ok")
        runner.run(server.upload(b"{}"))

        @fuzz(150)
        @given(
            gone=st.sampled_from([None, None, 0, 1]),
            more=st.lists(st.tuples(NAMES, VALUES, FILES), max_size=3),
            end=st.sampled_from([True, True, True, False]),
        )
        def one(gone: int | None, more: list[tuple[str, bytes, str | None]], end: bool) -> None:
            usual = [("purpose", b"batch", None), ("file", b"{}", "in.jsonl")]
            parts = [each for number, each in enumerate(usual) if number != gone] + more
            form = b"".join(part(*each) for each in parts) + (b"--cut--\r\n" if end else b"")
            kind = {"content-type": "multipart/form-data; boundary=cut"}
            response = runner.run(server.ask("POST", "/v1/files", form, kind))
            assert response.status in (200, 400), response.body

        one()
        assert runner.run(server.get("/v1/files")).status == 200


def part(name: str, value: bytes, file: str | None) -> bytes:
    named = f'form-data; name="{name}"' + ("" if file is None else f'; filename="{file}"')
    return b"--cut\r\ncontent-disposition: " + named.encode() + b"\r\n\r\n" + value + b"\r\n"
