"""acceptance 4.4: tools, called by grammar or found in free text."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from skirret_server.testing import CHAT_TEMPLATE
from skirret_server.text.template import ChatTemplate

T1 = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a"],
        },
    },
}
T2 = {
    "type": "function",
    "function": {"name": "g", "parameters": {"type": "object", "properties": {}}},
}
NAMED = {"type": "function", "function": {"name": "g"}}
WANTED = (
    'Sure.<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)


def calls(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    found = answer["choices"][0]["message"].get("tool_calls", [])
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in found]


async def test_a_required_call_is_written_by_grammar(real: Any) -> None:
    """K1, K2"""
    answer = await real.every_way(
        tools=[T1, T2], tool_choice="required", parallel_tool_calls=False, temperature=1, seed=1
    )
    (name, arguments), = calls(answer)  # fmt: skip
    assert name in ("f", "g")
    assert set(arguments) == ({"a"} if name == "f" else set())
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["choices"][0]["message"]["content"] is None


async def test_a_named_call_ends_with_stop(real: Any) -> None:
    """K2"""
    answer = await real.every_way(tools=[T1, T2], tool_choice=NAMED)
    assert calls(answer) == [("g", {})]
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_the_client_accumulates_one_valid_call(real: Any, chat: Any) -> None:
    """K1"""
    body = chat(tools=[T1], tool_choice="required", parallel_tool_calls=False)
    state = ChatCompletionStreamState(input_tools=openai.omit)
    for event in await real.events("/v1/chat/completions", body):
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    message = state.get_final_completion().choices[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.name == "f"
    assert set(json.loads(message.tool_calls[0].function.arguments)) == {"a"}


async def test_calls_are_found_in_free_text(saying: Any) -> None:
    """K2"""
    answer = await saying(*WANTED).every_way(tools=[T1, T2], max_tokens=500)
    assert calls(answer) == [("f", {"a": 1}), ("g", {})]
    assert answer["choices"][0]["message"]["content"] == "Sure."
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "a\nb", "arguments": {}}',
        '{"name": "\\x", "arguments": {}}',
        '{"name": "f", "arguments": ' + "[" * 250,
        "[" * 250,
        '{"name": 1, "arguments": {}}',
        '{"name": "f"',
        '{"arguments": {}}',
        "1" * 300,
        "",
    ],
)
async def test_what_is_no_call_stays_text(saying: Any, written: str) -> None:
    text = f"<tool_call>{written}</tool_call>"
    answer = await saying(*text).every_way(tools=[T1], max_tokens=600)
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("written", ['"{\\"a\\": 1}"', '{"a": 1}'])
async def test_arguments_may_be_written_as_text_or_before_the_name(
    saying: Any, written: str
) -> None:
    text = f'<tool_call>{{"arguments": {written}, "name": "f"}}</tool_call>'
    assert calls(await saying(*text).every_way(tools=[T1], max_tokens=600)) == [("f", {"a": 1})]


async def test_without_parallel_calls_there_is_one(saying: Any) -> None:
    """K4"""
    answer = await saying(*WANTED).every_way(
        tools=[T1, T2], parallel_tool_calls=False, max_tokens=500
    )
    assert calls(answer) == [("f", {"a": 1})]


async def test_with_no_tool_chosen_text_stays_text(saying: Any) -> None:
    answer = await saying(*WANTED).every_way(tools=[T1, T2], tool_choice="none", max_tokens=500)
    assert answer["choices"][0]["message"]["content"] == WANTED
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_an_answer_without_calls_ends_with_stop(saying: Any) -> None:
    answer = await saying("Hi").every_way(tools=[T1])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in answer["choices"][0]["message"]


async def test_a_call_cut_by_the_length_keeps_what_there_is(saying: Any) -> None:
    """K13"""
    written = '<tool_call>\n{"name": "f", "arguments": {"a": 1'
    server = saying(*written)
    answer = await server.every_way(tools=[T1], max_tokens=len(written))
    call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call == {"name": "f", "arguments": '{"a": 1'}
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_required_call_cut_at_once_is_no_failure(real: Any) -> None:
    """K13"""
    answer = await real.every_way(tools=[T1], tool_choice="required", max_tokens=3)
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_only_allowed_tools_are_called(real: Any) -> None:
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [NAMED]},
    }
    answer = await real.every_way(tools=[T1, T2], tool_choice=choice, parallel_tool_calls=False)
    assert calls(answer) == [("g", {})]


async def test_a_free_choice_is_between_a_call_and_the_schema(real: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 7}}}
    for seed in range(3):
        answer = await real.every_way(
            tools=[T2], response_format=schema, temperature=2, seed=seed, parallel_tool_calls=False
        )
        assert calls(answer) or answer["choices"][0]["message"]["content"] == "7"


async def test_the_model_is_told_of_the_tools(saying: Any) -> None:
    server = saying("ok")
    await server.chat(tools=[T1])
    told = server.tokenizer.join(server.engine.requests[-1].prompt).decode()
    assert '"name": "f"' in told
    assert told.startswith("<|im_start|>system\n")
    server.template = ChatTemplate("{{ tools | tojson }}" + CHAT_TEMPLATE, {})
    server.lifecycle.serve(server.served)
    await server.chat(tools=[T1])
    told = server.tokenizer.join(server.engine.requests[-1].prompt).decode()
    assert told.startswith('[{"type": "function"')
    assert "system" not in told


async def test_no_call_is_dropped_however_many_there_are(saying: Any) -> None:
    one = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    server = saying("\n".join([one] * 200))
    answer = (await server.chat(tools=[T2], tool_choice="required")).json()
    assert calls(answer) == [("g", {})] * 200
    history: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    body = {"model": "tiny", "messages": history, "tools": [T2]}
    events = await server.events("/v1/chat/completions", body)
    found = [call for event in events for choice in event["choices"]
             for call in choice["delta"].get("tool_calls", ()) if "id" in call]  # fmt: skip
    assert [call["index"] for call in found] == list(range(200))
    history += [answer["choices"][0]["message"],
               *({"role": "tool", "tool_call_id": call["id"], "content": "1"}
                 for call in answer["choices"][0]["message"]["tool_calls"])]  # fmt: skip
    refused = (await server.chat(tools=[T2], messages=history)).json()["error"]
    assert refused["code"] == "context_length_exceeded"


FAULTS = [
    pytest.param({"tools": []}, "tools", "empty_array", id="K10"),
    pytest.param({"tools": [{"type": "function", "function": {"name": "a b"}}]},
                 "tools[0].function.name", "invalid_value", id="K11"),
    pytest.param({"tools": [T1, T1]}, "tools[1].function.name", "invalid_value", id="twice"),
    pytest.param({"tools": [{"type": "custom"}]}, "tools[0]", "unsupported_value", id="custom"),
    pytest.param({"tool_choice": "required"}, "tool_choice", "invalid_value", id="no-tools"),
    pytest.param({"tool_choice": NAMED}, "tool_choice", "invalid_value", id="no-tools-named"),
    pytest.param({"tools": [T1], "tool_choice": NAMED}, "tool_choice", "invalid_value",
                 id="unknown"),
    pytest.param({"tools": [T1], "tool_choice": "any"}, "tool_choice", "invalid_value", id="any"),
    pytest.param({"tools": [T1], "tool_choice": "required", "regex": "a"}, "tool_choice",
                 "invalid_value", id="and-regex"),
    pytest.param({"tools": [{"type": "function", "function": {"name": "f", "parameters":
                  {"type": "object", "not": {}}}}], "tool_choice": "required"},
                 "tools[0].function.parameters", "invalid_json_schema", id="bad-schema"),
    pytest.param({"functions": []}, "functions", "unsupported_parameter", id="functions"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "param", "code"), FAULTS)
async def test_a_faulty_tool_is_refused_by_name(
    real: Any, fault: dict[str, Any], param: str, code: str
) -> None:
    response = await real.chat(**fault)
    assert response.status == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


async def test_the_format_of_calls_can_be_set(saying: Any) -> None:
    server = saying('[TOOL_CALLS][{"name": "g", "arguments": {}}]',
                    settings={"tool_call_parser": "mistral"})  # fmt: skip
    assert calls(await server.every_way(tools=[T2])) == [("g", {})]
