"""/v1/responses, without state: as OpenAI's client asks, and streamed as it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skirret_server.testing import END_THINK, THINK

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "f",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
    },
}
CALLED = 'Sure.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def body(**extra: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hi", "temperature": 0, "max_output_tokens": 200, **extra}


async def answered(server: Any, **extra: Any) -> dict[str, Any]:
    """The answer, after comparing the stream's with it, and the stream's events with its end."""
    plain = await server.post(PATH, body(**extra))
    assert plain.status == 200, plain.body
    streamed = await server.post(PATH, body(**extra, stream=True))
    assert streamed.status == 200, streamed.body
    events = server.responses_events(streamed.body)
    answer: dict[str, Any] = plain.json()
    assert normal(events[-1]["response"]) == normal(answer)
    assert grown(events) == texts(answer)
    return answer


def normal(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two answers."""
    output = [{**item, "id": "", "call_id": ""} for item in answer["output"]]
    usage = {**answer["usage"], "input_tokens_details": {}}
    return {**answer, "id": "", "created_at": 0, "output": output, "usage": usage}


def texts(answer: dict[str, Any]) -> list[str]:
    return [
        item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        for item in answer["output"]
    ]


def grown(events: list[dict[str, Any]]) -> list[str]:
    """What the deltas add up to, by item."""
    found: list[str] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            found.append("")
        elif event["type"].endswith(".delta"):
            found[event["output_index"]] += event["delta"]
    return found


async def test_a_text_is_answered_with_a_message(saying: Any) -> None:
    answer = await answered(saying("H", "i", " é😀".encode()[:4], " é😀".encode()[4:]))
    (item,) = answer["output"]
    assert item["content"][0]["text"] == "Hi é😀"
    assert (answer["status"], answer["store"], answer["error"]) == ("completed", False, None)
    assert answer["usage"]["output_tokens"] == 5


async def test_an_answer_without_text_is_an_empty_message(saying: Any) -> None:
    assert texts(await answered(saying())) == [""]


async def test_an_answer_cut_by_the_length_is_incomplete(saying: Any) -> None:
    answer = await answered(saying("a", "b"), max_output_tokens=1)
    assert answer["status"] == answer["output"][0]["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_items_become_the_messages_of_a_chat(saying: Any) -> None:
    server = saying("ok")
    items: list[Any] = [
        {"role": "developer", "content": "kind"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"role": "user", "content": "d"},
    ]
    assert (await server.post(PATH, body(input=items, instructions="brief"))).status == 200
    prompt = server.tokenizer.join(server.engine.requests[-1].prompt).decode()
    said = [
        turn.partition("\n") for turn in prompt.replace("<|im_end|>\n", "").split("<|im_start|>")
    ]
    assert [(role, text) for role, _, text in said[1:]] == [
        ("system", "brief"),
        ("system", "kind"),
        ("user", "a"),
        ("assistant", "b"),
        ("tool", "1"),
        ("user", "d"),
        ("assistant", ""),
    ]


async def test_an_answers_items_can_be_sent_back(saying: Any) -> None:
    server = saying(THINK, "hm", END_THINK, *CALLED)
    answer = await answered(server, tools=[TOOL])
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    output = {"type": "function_call_output", "call_id": answer["output"][2]["call_id"],
              "output": "2"}  # fmt: skip
    again = [{"role": "user", "content": "hi"}, *answer["output"], output]
    assert (await server.post(PATH, body(input=again, tools=[TOOL]))).status == 200


async def test_a_call_is_an_item_of_its_own(saying: Any) -> None:
    answer = await answered(saying(*CALLED), tools=[TOOL])
    message, call = answer["output"]
    assert message["content"][0]["text"] == "Sure."
    assert (call["name"], json.loads(call["arguments"])) == ("f", {"a": 1})
    assert call["call_id"].startswith("call_")
    assert answer["tools"][0]["name"] == "f"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
async def test_a_call_that_must_be_is_written_by_grammar(real: Any, choice: Any) -> None:
    answer = await answered(real, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    (call,) = answer["output"]
    assert set(json.loads(call["arguments"])) == {"a"}
    assert answer["tool_choice"] == choice


async def test_a_format_is_enforced(real: Any) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"const": 7}, "strict": True}
    answer = await answered(real, text={"format": form})
    assert texts(answer) == ["7"]
    assert answer["text"]["format"] == form


async def test_logprobs_are_given_when_they_are_included(saying: Any) -> None:
    answer = await answered(saying("a", "b"), include=["message.output_text.logprobs"],
                            top_logprobs=2)  # fmt: skip
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == ["a", "b"]
    assert len(entries[0]["top_logprobs"]) == 2


async def test_what_has_no_effect_is_named(saying: Any) -> None:
    response = await saying("ok").post(
        PATH,
        body(
            user="me",
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "low", "summary": "auto"},
            text={"verbosity": "low"},
        ),
    )
    assert set(response.headers["x-ignored-params"].split(", ")) == {
        "user",
        "include: reasoning.encrypted_content",
        "reasoning.summary",
        "reasoning.effort",
        "text.verbosity",
    }


FAULTS = [
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": []}, "input", "empty_array"),
    ({"input": 1}, "input", "invalid_type"),
    ({"input": [{"role": "bot", "content": "x"}]}, "input[0].role", "invalid_value"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "unsupported_value"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]",
     "unsupported_value"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id",
     "missing_required_parameter"),
    ({"input": "x" * 3000}, "input", "context_length_exceeded"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "x"}}, "prompt", "unsupported_parameter"),
    ({"store": True}, "store", "unsupported_value"),
    ({"background": True}, "background", "unsupported_value"),
    ({"store": 1}, "store", "invalid_type"),
    ({"truncation": "auto"}, "truncation", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
    ({"messages": []}, "messages", "unknown_parameter"),
    ({"n": 2}, "n", "unknown_parameter"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]", "unsupported_value"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name", "invalid_value"),
    ({"tools": [{**TOOL, "parameters": {"type": "strng"}}], "tool_choice": "required"},
     "tools[0].parameters", "invalid_json_schema"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice",
     "invalid_value"),
    ({"tools": [TOOL], "top_logprobs": 1}, "top_logprobs", "unsupported_value"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name",
     "missing_required_parameter"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "strng"}}}},
     "text.format", "invalid_json_schema"),
    ({"stream_options": {}}, "stream_options", None),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "param", "code"), FAULTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_is_refused_by_its_own_name(
    real: Any, fault: dict[str, Any], param: str, code: str | None, stream: bool
) -> None:
    if stream and "stream_options" in fault:
        return
    response = await real.post(PATH, body(stream=stream, **fault))
    error = response.json()["error"]
    assert (response.status, error["param"], error["code"]) == (400, param, code)


async def test_no_other_models_responses_are_made(saying: Any) -> None:
    assert (await saying("ok").post(PATH, body(model="nope"))).status == 404


async def test_batches_of_responses_are_refused_when_they_are_made(saying: Any) -> None:
    server = saying("ok")
    file = await server.upload(b'{"custom_id":"a"}')
    wanted = {"input_file_id": file, "endpoint": PATH, "completion_window": "24h"}
    error = (await server.post("/v1/batches", wanted)).json()["error"]
    assert (error["param"], error["code"]) == ("endpoint", "invalid_value")
    assert "/v1/chat/completions" in error["message"]


async def test_an_engine_that_dies_is_told_in_the_stream(saying: Any) -> None:
    server = saying("a", "b", script={"fails_after": 1})
    response = await server.post(PATH, body(stream=True))
    assert b'data: {"error":' in response.body
    assert response.body.endswith(b"data: [DONE]\n\n")
