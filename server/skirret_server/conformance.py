"""Judges answers by OpenAI's own types: for tests, which need the `openai` package.

Nothing that the types require may be missing, and nothing may be there that neither they nor
`EXTRAS` know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from openai import BaseModel
from openai.pagination import SyncPage
from openai.types import Batch, Completion, ErrorObject, FileDeleted, FileObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

# What our answers hold beside OpenAI's fields, by the type that holds it.
EXTRAS: Mapping[str, frozenset[str]] = {
    name: frozenset(fields)
    for name, fields in {
        "Choice": ("matched_stop",),
        "CompletionChoice": ("matched_stop",),
        "ChatCompletionMessage": ("reasoning_content",),
        "ChoiceDelta": ("reasoning_content",),
        "Completion": ("service_tier",),
        "Batch": ("x_progress",),
        "Response": ("store",),
        "Model": ("root", "parent", "max_model_len"),
        "InputTokensDetails": ("predicted_cached_tokens",),
        "Logprob": ("bytes",),
        "LogprobTopLogprob": ("bytes",),
        "SyncPage": ("first_id", "last_id", "has_more"),
    }.items()
}

_ENVELOPE = {"message", "type", "param", "code"}
_KINDS: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("POST", r"/v1/chat/completions", ChatCompletion),
    ("POST", r"/v1/completions", Completion),
    ("POST", r"/v1/responses", Response),
    ("GET", r"/v1/models", SyncPage[Model]),
    ("GET", r"/v1/models/.+", Model),
    ("POST", r"/v1/files", FileObject),
    ("GET", r"/v1/files", SyncPage[FileObject]),
    ("GET", r"/v1/files/[^/]+", FileObject),
    ("DELETE", r"/v1/files/[^/]+", FileDeleted),
    ("POST", r"/v1/batches", Batch),
    ("GET", r"/v1/batches", SyncPage[Batch]),
    ("GET", r"/v1/batches/[^/]+", Batch),
    ("POST", r"/v1/batches/[^/]+/cancel", Batch),
)


def judge(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raises AssertionError or pydantic's ValidationError for what OpenAI's clients don't expect.

    `headers` are by lower-case names; `body` is the whole of it.
    """
    assert re.fullmatch(r"[\x21-\x7e]{1,128}", headers["x-request-id"])
    path = path.partition("?")[0]
    if method == "HEAD":
        return
    if status >= 400:
        _judge_refusal(status, headers, body)
    elif headers.get("content-type", "").startswith("text/event-stream"):
        if path == "/v1/responses":
            responses_events(body)
            return
        events = events_of(body)
        if path.startswith("/v1/"):
            judge_events(events, is_chat=path == "/v1/chat/completions")
    else:
        for known, pattern, kind in _KINDS:
            if method == known and re.fullmatch(pattern, path):
                fits(kind, body)


def fits(kind: type[BaseModel], body: bytes) -> None:
    """Raises when the body is not strictly of this type."""
    if kind is Completion:
        body = _without_first_nulls(body)
    judged = kind.model_validate_json(body, strict=True)
    _no_strangers(judged)
    _no_constants(body)


def _without_first_nulls(body: bytes) -> bytes:
    """Nothing comes before an echoed prompt's first token: OpenAI sends null, unlike its types."""
    answer = json.loads(body)
    for choice in answer["choices"]:
        logprobs = choice["logprobs"] or {}
        for name, empty in (("token_logprobs", 0.0), ("top_logprobs", {})):
            if logprobs.get(name) and logprobs[name][0] is None:
                logprobs[name][0] = empty
    return json.dumps(answer).encode()


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The events of a whole stream, [DONE] and comments taken off."""
    assert body.endswith(b"\n\n")
    *events, done = [part for part in body.decode().split("\n\n")[:-1] if not part.startswith(":")]
    assert done == "data: [DONE]"
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def judge_events(events: Sequence[Mapping[str, Any]], *, is_chat: bool) -> None:
    """A stream's events: the rules that hold between them, and each by its type."""
    *chunks, last = events
    if "error" in last:
        _judge_error(last)
    else:
        chunks.append(last)
    heads = {json.dumps({k: v for k, v in c.items() if k not in ("choices", "usage")})
             for c in chunks}  # fmt: skip
    assert len(heads) <= 1, heads
    choices: dict[int, _Choice] = {}
    for chunk in chunks:
        _judge_chunk(chunk, is_chat)
        for part in chunk["choices"]:
            choices.setdefault(part["index"], _Choice(is_chat)).add(part)
    if "error" not in last:
        assert list(choices) == sorted(choices) if is_chat else True
        assert all(choice.has_ended for choice in choices.values())
    _judge_usage(chunks, has_failed="error" in last)


def responses_events(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream of /v1/responses, each judged by its type, and their order."""
    assert body.endswith(b"\n\ndata: [DONE]\n\n")
    parts = [p for p in body.decode().split("\n\n")[:-2] if not p.startswith(":")]
    events: list[dict[str, Any]] = []
    for part in parts:
        if part.startswith('data: {"error"'):
            _judge_error(json.loads(part.removeprefix("data: ")))
            assert part == parts[-1]
            return events
        name, _, data = part.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        _no_strangers(_RESPONSES_EVENT.validate_json(json.dumps(event), strict=True))
        events.append(event)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] in ("completed", "incomplete")
    added = [e["output_index"] for e in events if e["type"].endswith("output_item.added")]
    items = [e["item"] for e in events if e["type"].endswith("output_item.done")]
    assert added == list(range(len(items)))
    assert items == events[-1]["response"]["output"]
    return events


_RESPONSES_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class _Choice:
    """What has been streamed of one choice."""

    def __init__(self, is_chat: bool) -> None:
        self.has_ended = False
        self._is_chat = is_chat
        self._has_role = False
        self._calls = 0

    def add(self, part: Mapping[str, Any]) -> None:
        assert not self.has_ended, "nothing may follow the end of a choice"
        self.has_ended = part["finish_reason"] is not None
        if self._is_chat:
            self._add_delta(part["delta"], part["logprobs"])
        else:
            assert not (self.has_ended and part["text"])

    def _add_delta(self, delta: Mapping[str, Any], logprobs: Any) -> None:
        assert ("role" in delta) is not self._has_role
        if not self._has_role:
            self._has_role = True
            assert delta == {"role": "assistant", "content": "", "refusal": None}
            return
        assert None not in delta.values()
        assert "" not in delta.values()
        assert (not delta) == self.has_ended or logprobs is not None
        for call in delta.get("tool_calls", ()):
            is_new = "id" in call
            self._calls += is_new
            assert call["index"] == self._calls - 1
            assert set(call) == ({"index", "id", "type", "function"} if is_new
                                 else {"index", "function"})  # fmt: skip
            assert set(call["function"]) == ({"name", "arguments"} if is_new else {"arguments"})
            assert is_new == (call["function"]["arguments"] == "")


def _judge_chunk(chunk: Mapping[str, Any], is_chat: bool) -> None:
    if is_chat:
        fits(ChatCompletionChunk, json.dumps(chunk).encode())
        return
    # The type knows whole answers alone, whose every choice has ended.
    ended = [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in chunk["choices"]]
    fits(Completion, json.dumps({**chunk, "choices": ended}).encode())


def _judge_usage(chunks: Sequence[Mapping[str, Any]], *, has_failed: bool) -> None:
    with_usage = [chunk for chunk in chunks if "usage" in chunk]
    if not with_usage:
        assert all(len(chunk["choices"]) == 1 for chunk in chunks)
        return
    assert len(with_usage) == len(chunks)
    if not has_failed:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] > 0


def _judge_refusal(status: int, headers: Mapping[str, str], body: bytes) -> None:
    assert headers["content-type"] == "application/json"
    _judge_error(json.loads(body))
    if status in (429, 503):
        assert 1 <= int(headers["retry-after"]) <= 120
    if status == 409:
        assert headers["x-should-retry"] == "false"


def _judge_error(body: Mapping[str, Any]) -> None:
    assert set(body) == {"error"}
    assert set(body["error"]) == _ENVELOPE
    assert body["error"]["message"]
    fits(ErrorObject, json.dumps(body["error"]).encode())


def _no_strangers(value: Any) -> None:
    if isinstance(value, BaseModel):
        name = type(value).__name__.partition("[")[0]
        strangers = set(value.model_extra or ()) - EXTRAS.get(name, frozenset())
        assert not strangers, f"{name} has {strangers}"
        for field in type(value).model_fields:
            _no_strangers(getattr(value, field))
    elif isinstance(value, list):
        for item in value:
            _no_strangers(item)


def _no_constants(body: bytes) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    json.loads(body, parse_constant=refuse)
