"""acceptance 4.3: the shape of streams, and what is sent before and after them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion

from skirret_server.api.answer import Pace
from skirret_server.core import GenerateRequest, QueueFull
from skirret_server.testing import Script

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


async def test_a_stream_ends_with_done_and_a_blank_line(saying: Any, chat: Any) -> None:
    """R1"""
    response = await saying("ok").post(CHAT, chat(stream=True))
    assert response.body.endswith(b"data: [DONE]\n\n")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


async def test_the_chunk_that_ends_a_choice_has_an_empty_delta(saying: Any, chat: Any) -> None:
    """R2"""
    events = await saying("ok").events(CHAT, chat())
    assert events[-1]["choices"][0]["delta"] == {}
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def by_choice(request: GenerateRequest) -> Script:
    """Says the number of the choice."""
    return Script(tokens=b"choice " + request.id.rpartition("-")[2].encode())


async def test_each_choice_has_its_own_index_and_text(saying: Any, chat: Any) -> None:
    """R4, R5"""
    server = saying()
    server.engine.answer = by_choice
    answer = await server.every_way(n=3, temperature=1, seed=7)
    assert [choice["message"]["content"] for choice in answer["choices"]] == [
        "choice 0",
        "choice 1",
        "choice 2",
    ]
    events = await server.events(CHAT, chat(n=3))
    roles = [e["choices"][0]["index"] for e in events if "role" in e["choices"][0]["delta"]]
    assert roles == [0, 1, 2]
    assert all("role" not in e["choices"][0]["delta"] for e in events[3:])


async def test_the_usage_chunk_comes_last_alone_and_equals_the_plain_usage(
    saying: Any, chat: Any
) -> None:
    """R7, R8"""
    server = saying("ok", script={"cached_tokens": 3})
    options = {"stream_options": {"include_usage": True}}
    *chunks, last = await server.events(CHAT, chat(**options))
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == (await server.chat()).json()["usage"]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert last["usage"]["completion_tokens"] == 2


async def test_without_the_option_no_chunk_has_a_usage_key(saying: Any, chat: Any) -> None:
    assert all("usage" not in event for event in await saying("ok").events(CHAT, chat()))


async def test_usage_may_be_asked_for_in_every_chunk(saying: Any, chat: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await saying("o", "k").events(CHAT, chat(stream_options=options))
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    "fault", [{"temperature": 3}, {"model": "nope"}, {"max_tokens": 5000}, {"regex": "("}]
)
async def test_a_bad_request_is_refused_before_any_byte_of_a_stream(
    saying: Any, chat: Any, fault: dict[str, Any]
) -> None:
    """R10"""
    response = await saying("ok").post(CHAT, chat(**{"stream": True, **fault}))
    assert response.status in (400, 404)
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["message"]


async def test_a_full_queue_is_a_429_even_for_a_stream(saying: Any, chat: Any) -> None:
    server = saying("ok")
    server.engine.refusal = QueueFull("512 requests wait")
    response = await server.post(CHAT, chat(stream=True))
    assert response.status == 429
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(response.headers["retry-after"]) <= 120


async def test_an_engine_that_dies_mid_stream_is_told_in_the_stream(saying: Any, chat: Any) -> None:
    """R11"""
    server = saying("a", "b", "c", "d", script={"fails_after": 3})
    response = await server.post(CHAT, chat(stream=True))
    events = [json.loads(e[6:]) for e in response.body.decode().split("\n\n")[:-2]]
    assert events[-1]["error"]["type"] == "server_error"
    assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
    assert response.body.endswith(b"data: [DONE]\n\n")
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == "abc"


async def test_an_engine_that_dies_is_a_500_when_nothing_was_sent(saying: Any) -> None:
    server = saying("a", script={"fails_after": 0})
    response = await server.chat(n=2)
    assert response.status == 500
    assert response.json()["error"]["type"] == "server_error"
    assert response.headers["x-request-id"] in response.json()["error"]["message"]


async def test_a_plain_request_is_answered_with_json(saying: Any) -> None:
    """R13"""
    response = await saying("ok").chat(max_tokens=1, stream=False)
    assert response.headers["content-type"] == "application/json"
    assert response.json()["object"] == "chat.completion"
    assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_a_stream_that_waits_is_opened_and_kept_alive_with_comments(
    saying: Any, chat: Any
) -> None:
    """R14"""
    gate = asyncio.Event()
    script = {"waits_after": 0, "gate": gate}
    server = saying("ok", script=script, pace=Pace(heartbeat=0.01))
    async with server.call(CHAT, chat(stream=True)) as call:
        pieces = call.pieces()
        assert [await anext(pieces) for _ in range(3)] == [b": keep-alive\n\n"] * 3
        gate.set()
        rest = b"".join([piece async for piece in pieces])
    assert call.status == 200
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_failure_after_the_first_comment_is_an_event(saying: Any, chat: Any) -> None:
    gate = asyncio.Event()
    script = {"waits_after": 1, "fails_after": 2, "gate": gate}
    server = saying("a", "b", script=script, pace=Pace(heartbeat=0.01))
    async with server.call(CHAT, chat(stream=True)) as call:
        await asyncio.sleep(0.03)
        gate.set()
        body = b"".join([piece async for piece in call.pieces()])
    assert b'data: {"error":' in body
    assert body.endswith(b"data: [DONE]\n\n")


async def test_chunks_and_answers_are_what_openais_types_say(
    saying: Any, chat: Any, text: Any
) -> None:
    server = saying("a", "b")
    extra: dict[str, Any] = {"stream_options": {"include_usage": True}}
    for event in await server.events(CHAT, chat(logprobs=True, top_logprobs=2, **extra)):
        ChatCompletionChunk.model_validate(event, strict=False)
    for event in await server.events(TEXT, text(logprobs=1, **extra)):
        assert event["object"] == "text_completion"
    ChatCompletion.model_validate((await server.chat(logprobs=True)).json(), strict=False)
    Completion.model_validate((await server.text(logprobs=2)).json(), strict=False)


async def test_a_text_stream_adds_up_to_the_plain_answer(saying: Any, text: Any) -> None:
    server = saying("one", " two", "STOP")
    body = text(prompt=["hi", "there"], n=2, echo=True, logprobs=1, stop="STOP")
    plain = (await server.post(TEXT, body)).json()
    choices: dict[int, dict[str, Any]] = {}
    for event in await server.events(TEXT, body):
        part = event["choices"][0]
        whole = choices.setdefault(part["index"], {"text": "", "offsets": []})
        whole["text"] += part["text"]
        whole["offsets"] += (part["logprobs"] or {"text_offset": []})["text_offset"]
        whole["finish_reason"] = part["finish_reason"]
    assert sorted(choices) == [0, 1, 2, 3]
    for index, choice in choices.items():
        expected = plain["choices"][index]
        assert choice["text"] == expected["text"]
        assert choice["finish_reason"] == expected["finish_reason"] == "stop"
        assert choice["offsets"] == expected["logprobs"]["text_offset"]


async def test_updates_that_are_there_together_are_written_together(saying: Any, chat: Any) -> None:
    server = saying("ok")
    async with server.call(CHAT, chat(stream=True, n=8)) as call:
        pieces = [piece async for piece in call.pieces()]
    assert sum(piece.count(b"data: {") for piece in pieces) > 2 * len(pieces)
