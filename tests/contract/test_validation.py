"""acceptance 4.7: what is refused, with which words, and that the server outlives it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skirret_server.api.app import Access
from skirret_server.api.parameters import CHAT as CHAT_TABLE
from skirret_server.api.parameters import COMPLETION as TEXT_TABLE
from skirret_server.core import ModelInfo, Refused
from skirret_server.testing import TINY_VOCABULARY

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

_VOCABULARY = TINY_VOCABULARY + 64
USER = {"role": "user", "content": "hi"}

CHAT_FAULTS = [
    pytest.param({"model": "nope"}, 404, None, "model_not_found", id="V1"),
    pytest.param({"model": "nope", "stream": True}, 404, None, "model_not_found", id="V1-stream"),
    pytest.param({"logit_bias": {"99999999": 1}}, 400, "logit_bias", "invalid_value", id="V2-big"),
    pytest.param({"logit_bias": {"-1": 1}}, 400, "logit_bias", "invalid_value", id="V2-minus"),
    pytest.param({"logit_bias": {"x": 1}}, 400, "logit_bias", "invalid_value", id="V2-word"),
    pytest.param({"logit_bias": {"²": 1}}, 400, "logit_bias", "invalid_value", id="V2-digit"),
    pytest.param(
        {"logit_bias": {"5": 101}}, 400, "logit_bias", "decimal_above_max_value", id="V2-range"
    ),
    pytest.param({"seed": 2**63}, 400, "seed", "integer_above_max_value", id="V4"),
    pytest.param({"temperature": -0.1}, 400, "temperature", "decimal_below_min_value", id="V8-low"),
    pytest.param({"temperature": 2.1}, 400, "temperature", "decimal_above_max_value", id="V8-high"),
    pytest.param({"temperature": "1"}, 400, "temperature", "invalid_type", id="V8-string"),
    pytest.param({"temperature": True}, 400, "temperature", "invalid_type", id="V8-bool"),
    pytest.param({"temperature": 3}, 400, "temperature", "decimal_above_max_value", id="V17"),
    pytest.param({"temprature": 0}, 400, "temprature", "unknown_parameter", id="V20"),
    pytest.param(
        {"metadata": {str(i): "" for i in range(17)}},
        400,
        "metadata",
        "object_above_max_properties",
        id="V25-count",
    ),
    pytest.param(
        {"metadata": {"k": "v" * 513}}, 400, "metadata.k", "string_above_max_length", id="V25-value"
    ),
    pytest.param({"messages": []}, 400, "messages", "empty_array", id="no-messages"),
    pytest.param({"messages": None}, 400, "messages", "missing_required_parameter", id="null"),
    pytest.param({"messages": [{}]}, 400, "messages[0].role", "missing_required_parameter"),
    pytest.param(
        {"messages": [{"role": "bot", "content": ""}]}, 400, "messages[0].role", "invalid_value"
    ),
    pytest.param(
        {"messages": [{"role": "user"}]}, 400, "messages[0].content", "missing_required_parameter"
    ),
    pytest.param(
        {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "invalid_type"
    ),
    pytest.param(
        {"messages": [{"role": "user", "content": []}]}, 400, "messages[0].content", "empty_array"
    ),
    pytest.param(
        {"messages": [{"role": "user", "content": "", "x": 1}]},
        400,
        "messages[0].x",
        "unknown_parameter",
    ),
    pytest.param(
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400,
        "messages[0].content[0]",
        "unsupported_value",
    ),
    pytest.param(
        {"messages": [{"role": "tool", "content": "1"}]},
        400,
        "messages[0].tool_call_id",
        "missing_required_parameter",
    ),
    pytest.param(
        {"messages": [{"role": "assistant"}]},
        400,
        "messages[0].content",
        "missing_required_parameter",
    ),
    pytest.param({"max_tokens": 0}, 400, "max_tokens", "integer_below_min_value"),
    pytest.param({"max_completion_tokens": 0, "max_tokens": None}, 400, "max_completion_tokens",
                 "integer_below_min_value"),
    pytest.param({"max_tokens": 2.0}, 400, "max_tokens", "invalid_type"),
    pytest.param({"max_completion_tokens": 3}, 400, "max_tokens", "invalid_value", id="both"),
    pytest.param({"n": 0}, 400, "n", "integer_below_min_value"),
    pytest.param({"n": 129}, 400, "n", "integer_above_max_value"),
    pytest.param({"n": 128, "max_tokens": 10_000}, 400, "n", "integer_above_max_value", id="work"),
    pytest.param({"top_p": 1.5}, 400, "top_p", "decimal_above_max_value"),
    pytest.param({"top_k": 0}, 400, "top_k", "integer_below_min_value"),
    pytest.param({"repetition_penalty": 0}, 400, "repetition_penalty", "decimal_below_min_value"),
    pytest.param({"min_tokens": 65}, 400, "min_tokens", "integer_above_max_value"),
    pytest.param({"stop_token_ids": [10**6]}, 400, "stop_token_ids", "invalid_value"),
    pytest.param({"stream": "yes"}, 400, "stream", "invalid_type"),
    pytest.param({"stream_options": {}}, 400, "stream_options", None),
    pytest.param(
        {"stream": True, "stream_options": {"x": 1}}, 400, "stream_options.x", "unknown_parameter"
    ),
    pytest.param({"modalities": ["audio"]}, 400, "modalities[0]", "invalid_value"),
    pytest.param({"prediction": {}}, 400, "prediction", "unsupported_parameter"),
    pytest.param({"add_generation_prompt": True}, 400, "add_generation_prompt",
                 "unknown_parameter"),
    pytest.param({"logit_bias": {"9" * 5000: 1}}, 400, "logit_bias", "invalid_value"),
    pytest.param({"logit_bias": {"05": 1}}, 400, "logit_bias", "invalid_value"),
    pytest.param({"logit_bias": {"5": None}}, 400, "logit_bias", "invalid_type"),
    pytest.param({"logit_bias": {"5": "1"}}, 400, "logit_bias", "invalid_type"),
    pytest.param({"logit_bias": {"5": True}}, 400, "logit_bias", "invalid_type"),
    pytest.param({"logit_bias": [5]}, 400, "logit_bias", "invalid_type"),
    pytest.param({"logit_bias": {str(_VOCABULARY): 1}}, 400, "logit_bias", "invalid_value"),
    pytest.param({"seed": -(2**63) - 1}, 400, "seed", "integer_below_min_value"),
    pytest.param({"seed": 1.0}, 400, "seed", "invalid_type"),
    pytest.param({"seed": True}, 400, "seed", "invalid_type"),
    pytest.param({"seed": 10**4000}, 400, "seed", "integer_above_max_value"),
    pytest.param({"temperature": -(10**4000)}, 400, "temperature", "decimal_below_min_value"),
    pytest.param({"temperature": [1]}, 400, "temperature", "invalid_type"),
    pytest.param({"frequency_penalty": 2.0001}, 400, "frequency_penalty",
                 "decimal_above_max_value"),
    pytest.param({"presence_penalty": -2.0001}, 400, "presence_penalty",
                 "decimal_below_min_value"),
    pytest.param({"min_p": 1.1}, 400, "min_p", "decimal_above_max_value"),
    pytest.param({"top_k": -2}, 400, "top_k", "integer_below_min_value"),
    pytest.param({"n": 1.0}, 400, "n", "invalid_type"),
    pytest.param({"n": True}, 400, "n", "invalid_type"),
    pytest.param({"n": "1"}, 400, "n", "invalid_type"),
    pytest.param({"max_tokens": True}, 400, "max_tokens", "invalid_type"),
    pytest.param({"max_tokens": -1}, 400, "max_tokens", "integer_below_min_value"),
    pytest.param({"max_tokens": 2**31}, 400, "max_tokens", "integer_above_max_value"),
    pytest.param({"max_tokens": 2**31 - 1, "n": 1}, 400, "messages", "context_length_exceeded"),
    pytest.param({"max_tokens": 10**30}, 400, "max_tokens", "integer_above_max_value"),
    pytest.param({"stop": ""}, 400, "stop", "string_below_min_length"),
    pytest.param({"stop": [""]}, 400, "stop[0]", "string_below_min_length"),
    pytest.param({"stop": [None]}, 400, "stop[0]", "invalid_type"),
    pytest.param({"stop": ["a", 1]}, 400, "stop[1]", "invalid_type"),
    pytest.param({"stop": [["a"]]}, 400, "stop[0]", "invalid_type"),
    pytest.param({"stop": 1}, 400, "stop", "invalid_type"),
    pytest.param({"stop": {}}, 400, "stop", "invalid_type"),
    pytest.param({"stop_token_ids": [-1]}, 400, "stop_token_ids[0]", "integer_below_min_value"),
    pytest.param({"stop_token_ids": [1.0]}, 400, "stop_token_ids[0]", "invalid_type"),
    pytest.param({"stop_token_ids": 5}, 400, "stop_token_ids", "invalid_type"),
    pytest.param({"stream": 1}, 400, "stream", "invalid_type"),
    pytest.param({"stream_options": {"include_usage": True}}, 400, "stream_options", None),
    pytest.param({"stream": False, "stream_options": {}}, 400, "stream_options", None),
    pytest.param({"stream": True, "stream_options": "x"}, 400, "stream_options", "invalid_type"),
    pytest.param({"stream": True, "stream_options": {"include_usage": 1}}, 400,
                 "stream_options.include_usage", "invalid_type"),
    pytest.param({"top_logprobs": 0}, 400, "top_logprobs", None),
    pytest.param({"logprobs": False, "top_logprobs": 1}, 400, "top_logprobs", None),
    pytest.param({"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs",
                 "integer_below_min_value"),
    pytest.param({"metadata": {"k": 1}}, 400, "metadata.k", "invalid_type"),
    pytest.param({"metadata": {"k": None}}, 400, "metadata.k", "invalid_type"),
    pytest.param({"metadata": {"k" * 65: ""}}, 400, "metadata", "string_above_max_length"),
    pytest.param({"metadata": []}, 400, "metadata", "invalid_type"),
    pytest.param({"user": 1}, 400, "user", "invalid_type"),
    pytest.param({"store": "yes"}, 400, "store", "invalid_type"),
    pytest.param({"service_tier": "cheap"}, 400, "service_tier", "invalid_value"),
    pytest.param({"reasoning_effort": "extreme"}, 400, "reasoning_effort", "invalid_value"),
    pytest.param({"modalities": []}, 400, "modalities", "empty_array"),
    pytest.param({"audio": {"voice": "x", "format": "wav"}}, 400, "audio",
                 "unsupported_parameter"),
    pytest.param({"web_search_options": {}}, 400, "web_search_options", "unsupported_parameter"),
    pytest.param({"return_hidden_states": False}, 400, "return_hidden_states",
                 "unsupported_parameter"),
    pytest.param({"parallel_tool_calls": "no"}, 400, "parallel_tool_calls", "invalid_type"),
    pytest.param({"rid": ""}, 400, "rid", "string_below_min_length"),
    pytest.param({"chat_template_kwargs": {"a" * 65: 1}}, 400, "chat_template_kwargs",
                 "string_above_max_length"),
    pytest.param({"chat_template_kwargs": {"a-b": 1}}, 400, "chat_template_kwargs.a-b",
                 "invalid_value"),
    pytest.param({"foo": None}, 400, "foo", "unknown_parameter"),
    pytest.param({"": 1}, 400, "", "unknown_parameter"),
    pytest.param({"z" * 10_000: 1}, 400, "z" * 100 + "…", "unknown_parameter"),
    pytest.param({"messages": {}}, 400, "messages", "invalid_type"),
    pytest.param({"messages": "hi"}, 400, "messages", "invalid_type"),
    pytest.param({"messages": [None]}, 400, "messages[0]", "invalid_type"),
    pytest.param({"messages": ["hi"]}, 400, "messages[0]", "invalid_type"),
    pytest.param({"messages": [{"role": 1, "content": ""}]}, 400, "messages[0].role",
                 "invalid_type"),
    pytest.param({"messages": [{"role": None, "content": ""}]}, 400, "messages[0].role",
                 "missing_required_parameter"),
    pytest.param({"messages": [USER, {"role": "system", "content": None}]}, 400,
                 "messages[1].content", "missing_required_parameter"),
    pytest.param({"messages": [{"role": "assistant", "content": []}]}, 400,
                 "messages[0].content", "empty_array"),
    pytest.param({"messages": [{"role": "assistant", "content": "", "audio": {"id": "a"}}]}, 400,
                 "messages[0].audio", "unsupported_value"),
    pytest.param({"messages": [{**USER, "name": 1}]}, 400, "messages[0].name", "invalid_type"),
    pytest.param({"messages": [{**USER, "name": "a" * 257}]}, 400, "messages[0].name",
                 "string_above_max_length"),
    pytest.param({"messages": [{"role": "user", "content": ["x"]}]}, 400,
                 "messages[0].content[0]", "invalid_type"),
    pytest.param({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, 400,
                 "messages[0].content[0].type", "missing_required_parameter"),
    pytest.param({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400,
                 "messages[0].content[0].text", "missing_required_parameter"),
    pytest.param({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, 400,
                 "messages[0].content[0].type", "invalid_value"),
    pytest.param({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400,
                 "messages[0].content[0]", "unsupported_value"),
    pytest.param({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, 400,
                 "messages[0].content[0]", "unsupported_value"),
    pytest.param({"messages": [{"role": "tool", "content": [], "tool_call_id": "c"}]}, 400,
                 "messages[0].content", "empty_array"),
    pytest.param({"messages": [{"role": "tool", "content": "x", "tool_call_id": ""}]}, 400,
                 "messages[0].tool_call_id", "string_below_min_length"),
    pytest.param({"messages": [{"role": "function", "content": "x"}]}, 400, "messages[0].name",
                 "missing_required_parameter"),
    pytest.param({"continue_final_message": True}, 400, "continue_final_message",
                 "invalid_value"),
    pytest.param(
        {"chat_template_kwargs": {"messages": []}},
        400,
        "chat_template_kwargs.messages",
        "invalid_value",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "status", "param", "code"), CHAT_FAULTS)
async def test_a_fault_is_refused_by_name(
    saying: Any, chat: Any, fault: dict[str, Any], status: int, param: str | None, code: str | None
) -> None:
    server = saying("ok")
    found, error = await server.refused(CHAT, chat(**fault))
    assert (found, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 1000
    assert await server.is_alive()


async def test_a_fault_in_a_batchs_line_is_refused_as_it_is_by_itself(
    saying: Any, chat: Any
) -> None:
    server = saying("ok")
    faults: list[Any] = [case.values[0] for case in CHAT_FAULTS]
    bodies = [chat(**f) for f in faults if not {"model", "stream"} & f.keys()]
    lines = await server.lines(CHAT, bodies)
    for body, (status, answer) in zip(bodies, lines, strict=True):
        alone = await server.post(CHAT, body)
        assert (status, answer) == (alone.status, alone.json())


@pytest.mark.parametrize(
    ("fault", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [None]}, "prompt[0]"),
        ({"prompt": [[[1]]]}, "prompt[0][0]"),
        ({"prompt": [1.0]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [[1, True]]}, "prompt[0][1]"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [10**4000]}, "prompt[0]"),
        ({"prompt": [_VOCABULARY]}, "prompt"),
        ({"prompt": [[10**6]]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": 1}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 2049}, "prompt"),
        ({"prompt": ["a"] * 2048, "n": 3, "max_tokens": 1}, "n"),
        ({"prompt": ["a"] * 2048, "n": 128, "max_tokens": None}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        ({"max_tokens": None, "min_tokens": 17}, "min_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": 1}, "echo"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 6}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"messages": []}, "messages"),
        ({"max_completion_tokens": 1}, "max_completion_tokens"),
        ({"response_format": {"type": "text"}}, "response_format"),
    ],
)
async def test_a_faulty_text_completion_is_refused_by_name(
    saying: Any, text: Any, fault: dict[str, Any], param: str
) -> None:
    """V22"""
    server = saying("ok")
    status, error = await server.refused(TEXT, text(**fault))
    assert (status, error["param"]) == (400, param)
    if not fault.get("stream"):
        assert await server.lines(TEXT, [text(**fault)]) == [(400, {"error": error})]
    assert await server.is_alive()


WORDS = [
    (
        {"temperature": 200},
        "Invalid 'temperature': decimal above maximum value. "
        "Expected a value <= 2, but got 200 instead.",
    ),
    (
        {"temperature": "hot"},
        "Invalid type for 'temperature': expected a decimal, but got a string instead.",
    ),
    (
        {"stop": ["a"] * 5},
        "Invalid 'stop': array too long. Expected an array with maximum length 4, "
        "but got an array with length 5 instead.",
    ),
    ({"foo": 1}, "Unknown parameter: 'foo'."),
    ({"messages": None}, "Missing required parameter: 'messages'."),
    ({"model": "x"}, "The model `x` does not exist or you do not have access to it."),
    (
        {"stream_options": {"include_usage": True}},
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
    ),
]


@pytest.mark.parametrize(("fault", "message"), WORDS)
async def test_refusals_are_in_openais_words(
    saying: Any, fault: dict[str, Any], message: str
) -> None:
    assert (await saying("ok").chat(**fault)).json()["error"]["message"] == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"model":"tiny","temperature":NaN}',
        b'{"model":"tiny","user":"\\ud800"}',
        b'{"model":"tiny","user":"\xff"}',
        b'\xef\xbb\xbf{"model":"tiny"}',
        b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(saying: Any, body: bytes) -> None:
    server = saying("ok")
    response = await server.post(CHAT, body)
    assert response.status == 400
    assert response.json()["error"]["message"].startswith("We could not parse the JSON body")
    assert await server.is_alive()


async def test_infinity_is_no_temperature(saying: Any, chat: Any) -> None:
    """V8"""
    body = json.dumps(chat()).replace('"temperature": 0', '"temperature": 1e999').encode()
    assert (await saying("ok").post(CHAT, body)).json()["error"]["param"] == "temperature"


async def test_the_last_of_two_equal_keys_wins(saying: Any, chat: Any) -> None:
    """V23"""
    body = b'{"model":"nope",' + json.dumps(chat()).encode()[1:]
    assert (await saying("ok").post(CHAT, body)).status == 200


@pytest.mark.parametrize(("path", "table"), [(CHAT, CHAT_TABLE), (TEXT, TEXT_TABLE)])
async def test_null_is_absent_for_every_optional_field(
    saying: Any, chat: Any, text: Any, path: str, table: dict[str, Any]
) -> None:
    """V19"""
    body = chat() if path == CHAT else text()
    nulls = {name: None for name, one in table.items() if not one.required}
    assert (await saying("ok").post(path, {**nulls, **body})).status == 200


@pytest.mark.parametrize("seed", [-1, 0, 7, -(2**63), 2**63 - 1])
async def test_every_64_bit_seed_reaches_the_engine(saying: Any, seed: int) -> None:
    """V4"""
    server = saying("ok")
    assert (await server.chat(seed=seed)).status == 200
    assert server.engine.requests[-1].sampling.seed == seed


@pytest.mark.parametrize("temperature", [0, 1e-8, 1e-30])
async def test_a_tiny_temperature_is_greedy(saying: Any, temperature: float) -> None:
    """V7"""
    server = saying("ok")
    await server.chat(temperature=temperature)
    assert server.engine.requests[-1].sampling.temperature == 0


async def test_max_completion_tokens_is_honoured(saying: Any) -> None:
    """V5"""
    answer = await saying("a", "b", "c").every_way(
        max_tokens=None, max_completion_tokens=2, ignore_eos=True
    )
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_the_context_error_has_the_right_numbers(saying: Any) -> None:
    """V10"""
    response = await saying("ok").text(prompt=[65] * 2049, max_tokens=5)
    error = response.json()["error"]
    assert (response.status, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "prompt",
    )
    assert error["message"].startswith(
        "This model's maximum context length is 2048 tokens. However, you requested 2054 tokens "
        "(2049 in the prompt, 5 in the completion)."
    )


@pytest.mark.parametrize(
    ("size", "max_tokens", "status"),
    [(2047, 1, 200), (2048, 1, 400), (2048, 0, 200), (2048, None, 400), (2040, None, 200)],
)
async def test_the_context_is_filled_to_the_last_token(
    saying: Any, size: int, max_tokens: int | None, status: int
) -> None:
    """V11"""
    response = await saying("ok").text(prompt=[65] * size, max_tokens=max_tokens)
    assert response.status == status


async def test_a_chat_without_max_tokens_may_fill_the_context(saying: Any) -> None:
    server = saying("ok")
    await server.chat(max_tokens=None)
    request = server.engine.requests[-1]
    assert len(request.prompt) + request.sampling.max_tokens == 2048


async def test_no_sequence_is_longer_than_the_cache(saying: Any) -> None:
    server = saying("ok")
    server.engine._info = ModelInfo(300, 2048, frozenset({271}), 100)
    error = (await server.text(prompt=[65] * 99, max_tokens=2)).json()["error"]
    assert error["message"].startswith("This model's maximum context length is 100 tokens.")


async def test_what_the_engine_refuses_is_the_callers_fault(saying: Any) -> None:
    server = saying("ok")
    server.engine.refusal = Refused("the prompt holds 3 tokens too many")
    response = await server.chat()
    assert response.status == 400
    assert "too many" in response.json()["error"]["message"]


async def test_a_model_without_a_template_says_so(saying: Any) -> None:
    """V16"""
    server = saying("ok")
    server.template = None
    server.lifecycle.serve(server.served)
    response = await server.chat()
    assert response.status == 400
    assert "chat template" in response.json()["error"]["message"]
    assert (await server.text()).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", CHAT, 405, "POST"),
        ("DELETE", "/v1/models/tiny", 405, "GET"),
        ("POST", "/v1/nope", 404, None),
        ("GET", "/", 404, None),
        ("GET", "/v1/models/nope", 404, None),
        ("OPTIONS", TEXT, 405, "POST"),
    ],
)
async def test_every_refusal_has_the_envelope(
    saying: Any, method: str, path: str, status: int, allow: str | None
) -> None:
    """V26"""
    from skirret_server.api.inprocess import ask

    response = await ask(saying("ok").app, method, path)
    assert response.status == status
    assert response.headers.get("allow") == allow
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("text/json", 200),
        ("", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
async def test_the_body_must_be_called_json_or_nothing(
    saying: Any, chat: Any, kind: str, status: int
) -> None:
    response = await saying("ok").post(CHAT, chat(), {"content-type": kind})
    assert response.status == status
    if status == 415:
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_over_the_limit_is_refused_with_both_sizes(saying: Any, chat: Any) -> None:
    server = saying("ok")
    server.app._max_body = 1000
    response = await server.post(CHAT, chat(user="x" * 1000))
    error = response.json()["error"]
    assert (response.status, error["code"]) == (413, "request_too_large")
    assert "1000" in error["message"]
    assert response.headers["connection"] == "close"


async def test_a_huge_declared_body_is_refused_unread(saying: Any) -> None:
    headers = {"content-length": str(10**12)}
    assert (await saying("ok").post(CHAT, b"{}", headers)).status == 413


async def test_a_callers_request_id_comes_back(saying: Any, chat: Any) -> None:
    server = saying("ok")
    response = await server.post(CHAT, chat(), {"x-request-id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    response = await server.post(CHAT, chat(), {"x-request-id": "a b"})
    assert response.headers["x-request-id"].startswith("req_")


async def test_what_has_no_effect_is_named_in_a_header(saying: Any) -> None:
    response = await saying("ok").chat(
        user="me", store=True, reasoning_effort="low", chat_template_kwargs={"style": 1}
    )
    assert set(response.headers["x-ignored-params"].split(", ")) == {
        "user",
        "store",
        "reasoning_effort",
        "chat_template_kwargs.style",
    }
    assert "x-ignored-params" not in (await saying("ok").chat()).headers


async def test_a_long_user_is_accepted(saying: Any) -> None:
    """V25"""
    assert (await saying("ok").chat(user="u" * 100_000)).status == 200


@pytest.mark.parametrize("given", [None, "Bearer wrong-key-0123456789", "Basic key-abcdefghijkl"])
async def test_a_wrong_key_is_a_401_that_does_not_repeat_it(
    saying: Any, chat: Any, given: str | None
) -> None:
    server = saying("ok", access=Access(api_key="key-abcdefghijkl"))
    response = await server.post(CHAT, chat(), {"authorization": given} if given else {})
    assert response.status == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "wrong-key-0123456789" not in response.json()["error"]["message"]


async def test_the_right_key_opens_and_probes_need_none(saying: Any, chat: Any) -> None:
    server = saying("ok", access=Access(api_key="key-abcdefghijkl"))
    headers = {"authorization": "Bearer key-abcdefghijkl"}
    assert (await server.post(CHAT, chat(), headers)).status == 200
    for path in ("/health", "/ready", "/status", "/metrics"):
        assert (await server.get(path)).status == 200
    assert (await server.get("/v1/models")).status == 401


@pytest.mark.parametrize(("said", "status"), [("hi", 400), ("JSON, please", 200)])
async def test_json_must_be_mentioned_where_openais_own_rules_hold(
    saying: Any, chat: Any, said: str, status: int
) -> None:
    server = saying("{}", settings={"is_strict": True})
    body = {
        "messages": [{"role": "user", "content": said}],
        "response_format": {"type": "json_object"},
        "max_tokens": 1,
    }
    response = await server.chat(**body)
    assert response.status == status
    assert status == 200 or response.json()["error"]["param"] == "messages"
