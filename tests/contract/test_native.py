"""SGLang's own routes, and what the operator, Prometheus and batch workers read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from skirret_server.api.app import Mount
from skirret_server.api.inprocess import ask
from skirret_server.api.parameters import GENERATE, GENERATE_SAMPLING
from skirret_server.embedded import ELSEWHERE
from skirret_server.testing import IM_END


async def generate(server: Any, **body: Any) -> Any:
    response = await server.post("/generate", body)
    assert response.status == 200, response.body
    return response.json()


async def test_generate_answers_with_text_ids_and_counts(saying: Any) -> None:
    answer = await generate(saying("a", "b"), text="hi")
    assert answer["text"] == "ab"
    assert answer["output_ids"] == [97, 98, IM_END]
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": IM_END}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 3, 0)


async def test_generate_takes_ids_and_ends_at_the_length(saying: Any) -> None:
    answer = await generate(
        saying("a", "b"), input_ids=[104, 105], sampling_params={"max_new_tokens": 1}
    )
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 1}


async def test_lists_and_several_choices_are_answered_with_a_list_prompt_major(
    saying: Any,
) -> None:
    server = saying("a")
    answers = await generate(server, text=["hi", "there"], sampling_params={"n": 2})
    assert len(answers) == 4
    prompts = [len(request.prompt) for request in server.engine.requests]
    assert prompts == [2, 2, 3, 3]


async def test_each_prompt_may_have_its_own_parameters(saying: Any) -> None:
    server = saying("a", "b", "c")
    options = [{"max_new_tokens": 1}, {"stop": "c", "temperature": 0}]
    answers = await generate(server, text=["hi", "ho"], sampling_params=options)
    assert [answer["text"] for answer in answers] == ["a", "ab"]


async def test_a_generate_stream_repeats_the_whole_text(saying: Any) -> None:
    response = await saying("a", "b").post("/generate", {"text": "hi", "stream": True})
    assert response.body.endswith(b"data: [DONE]\n\n")
    events = [json.loads(event[6:]) for event in response.body.decode().split("\n\n")[:-2]]
    assert [event["text"] for event in events] == ["a", "ab", "ab"]
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "stop"


async def test_logprobs_of_generate_are_triples(saying: Any) -> None:
    answer = await generate(
        saying("a"),
        text="hi",
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        return_text_in_logprobs=True,
    )
    meta = answer["meta_info"]
    assert meta["output_token_logprobs"][0] == [-0.5, 97, "a"]
    assert meta["input_token_logprobs"][0] is None
    assert meta["input_token_logprobs"][1] == [-0.5, 105, "i"]
    assert len(meta["output_top_logprobs"][0]) == 2


async def test_generate_enforces_each_prompts_own_grammar(real: Any) -> None:
    options = [{"regex": "yes", "json_schema": ""}, {"json_schema": '{"const": 1}'}]
    answers = await generate(real, text=["a", "b"], sampling_params=options)
    assert [answer["text"] for answer in answers] == ["yes", "1"]
    response = await real.post("/generate", {"text": "a", "sampling_params": {"regex": "("}})
    assert response.json()["error"]["code"] == "invalid_grammar"


async def test_generate_allows_32_stops(saying: Any) -> None:
    server = saying("a")
    await generate(server, text="hi", sampling_params={"stop": ["x"] * 32})
    response = await server.post(
        "/generate", {"text": "hi", "sampling_params": {"stop": ["x"] * 33}}
    )
    assert response.json()["error"]["param"] == "sampling_params.stop"


def options(**sampling: Any) -> dict[str, Any]:
    return {"text": "a", "sampling_params": sampling}


FAULTS = [
    ({}, "text", "missing_required_parameter"),
    ({"text": None}, "text", "missing_required_parameter"),
    ({"text": "a", "input_ids": [1]}, "text", "invalid_value"),
    ({"text": ""}, "text", "invalid_value"),
    ({"text": ["a", ""]}, "text", "invalid_value"),
    ({"text": []}, "text", "empty_array"),
    ({"text": 1}, "text", "invalid_type"),
    ({"text": "a" * 3000}, "text", "context_length_exceeded"),
    ({"input_ids": [65] * 3000}, "input_ids", "context_length_exceeded"),
    ({"input_ids": []}, "input_ids", "empty_array"),
    ({"input_ids": [[]]}, "input_ids[0]", "empty_array"),
    ({"input_ids": [1.0]}, "input_ids[0]", "invalid_type"),
    ({"input_ids": [True]}, "input_ids[0]", "invalid_type"),
    ({"input_ids": "a"}, "input_ids", "invalid_type"),
    ({"input_ids": [-1]}, "input_ids[0]", "integer_below_min_value"),
    ({"input_ids": [10**6]}, "input_ids", "invalid_value"),
    ({"text": "a", "foo": 1}, "foo", "unknown_parameter"),
    ({"text": "a", "model": "tiny"}, "model", "unknown_parameter"),
    ({"text": "a", "lora_path": "x"}, "lora_path", "unsupported_parameter"),
    ({"text": "a", "rid": ["x"]}, "rid", "invalid_type"),
    ({"text": "a", "stream": 1}, "stream", "invalid_type"),
    ({"text": "a", "top_logprobs_num": 21}, "top_logprobs_num", "integer_above_max_value"),
    ({"text": "a", "logprob_start_len": -2}, "logprob_start_len", "integer_below_min_value"),
    ({"text": "a", "sampling_params": []}, "sampling_params", "empty_array"),
    ({"text": "a", "sampling_params": [None]}, "sampling_params[0]", "invalid_type"),
    ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params", "invalid_value"),
    ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params",
     "invalid_value"),
    ({"text": ["a", "b"], "sampling_params": [{}, {"top_k": 0}]}, "sampling_params[1].top_k",
     "integer_below_min_value"),
    (options(seed=1), "sampling_params.seed", "unknown_parameter"),
    (options(top_p=0), "sampling_params.top_p", "decimal_below_min_value"),
    (options(top_k=0), "sampling_params.top_k", "integer_below_min_value"),
    (options(temperature=True), "sampling_params.temperature", "invalid_type"),
    (options(max_new_tokens=-1), "sampling_params.max_new_tokens", "integer_below_min_value"),
    (options(min_new_tokens=129), "sampling_params.min_new_tokens", "integer_above_max_value"),
    (options(logit_bias={"x": 1}), "sampling_params.logit_bias", "invalid_value"),
    (options(stop_token_ids=[10**6]), "sampling_params.stop_token_ids", "invalid_value"),
    (options(sampling_seed=2**63), "sampling_params.sampling_seed", "integer_above_max_value"),
    (options(regex="("), "sampling_params.regex", "invalid_grammar"),
    (options(stop_regex="("), "sampling_params.stop_regex", "invalid_grammar"),
    (options(regex="a", ebnf='root ::= "a"'), "sampling_params.ebnf", "invalid_value"),
    (options(n=129), "sampling_params.n", "integer_above_max_value"),
    ({"text": ["a"] * 2048, "sampling_params": {"n": 3}}, "n", "integer_above_max_value"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "code"), FAULTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_faulty_generate_is_refused_by_name(
    saying: Any, body: dict[str, Any], param: str, code: str, stream: bool
) -> None:
    server = saying("a")
    response = await server.post("/generate", {"stream": stream, **body})
    error = response.json()["error"]
    assert (response.status, error["param"], error["code"]) == (400, param, code)
    assert await server.is_alive()


async def test_generate_says_what_has_no_effect(saying: Any) -> None:
    body = {"text": "a", "top_logprobs_num": 2, **options(spaces_between_special_tokens=False)}
    response = await saying("a").post("/generate", body)
    assert response.headers["x-ignored-params"] == (
        "top_logprobs_num, sampling_params.spaces_between_special_tokens"
    )


async def test_null_is_the_default_for_every_field_of_generate(saying: Any) -> None:
    """V19"""
    nulls = dict.fromkeys(GENERATE)
    nulls |= {"text": "a", "sampling_params": dict.fromkeys(GENERATE_SAMPLING)}
    assert (await generate(saying("a"), **nulls))["text"] == "a"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"prompt": ["a", 1]}, "prompt[1]"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"messages": [], "model": "tiny"}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1.0]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/abort_request", {}, "rid"),
        ("/abort_request", {"rid": ""}, "rid"),
        ("/abort_request", {"rid": 5}, "rid"),
        ("/abort_request", {"abort_all": "yes"}, "abort_all"),
        ("/abort_request", {"rid": "x", "y": 1}, "y"),
    ],
)
async def test_a_faulty_body_of_the_other_routes_is_refused_by_name(
    saying: Any, path: str, body: dict[str, Any], param: str
) -> None:
    response = await saying("a").post(path, body)
    assert (response.status, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_no_other_models_tokens_are_told(saying: Any, path: str) -> None:
    """V1"""
    body: dict[str, Any] = (
        {"model": "nope", "prompt": "a"} if path == "/tokenize" else {"model": "nope"}
    )
    body |= {} if path == "/tokenize" else {"tokens": [1]}
    response = await saying("a").post(path, body)
    assert (response.status, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_everything_can_be_aborted_as_sglangs_client_asks_for_it(saying: Any) -> None:
    response = await saying("a").post("/abort_request", {"rid": "", "abort_all": True})
    assert response.json() == {"aborted": 0}


async def test_tokens_and_back(saying: Any) -> None:
    server = saying("ok")
    tokens = (await server.post("/tokenize", {"prompt": "the ring"})).json()
    assert tokens["count"] == len(tokens["tokens"])
    text = (await server.post("/detokenize", {"tokens": tokens["tokens"]})).json()
    assert text == {"text": "the ring"}
    nothing = (await server.post("/tokenize", {"prompt": "", "messages": None})).json()["tokens"]
    assert (await server.post("/detokenize", {"tokens": nothing})).json() == {"text": ""}


async def test_messages_are_tokenised_as_a_chat_would_be(saying: Any, chat: Any) -> None:
    server = saying("ok")
    tokens = (await server.post("/tokenize", chat())).json()["tokens"]
    await server.chat()
    assert tokens == list(server.engine.requests[-1].prompt)


async def test_the_model_tells_what_a_batch_planner_needs(saying: Any) -> None:
    info = (await saying("ok").get("/get_model_info")).json()
    assert "im_start" in info["chat_template"]
    assert 0 < info["tokens_per_byte"] <= 1
    assert info["max_model_len"] == 2048
    assert info["special_tokens"]["bos_token"] == "<|im_start|>"


async def test_the_server_tells_how_logprobs_are_meant(saying: Any) -> None:
    assert (await saying("ok").get("/get_server_info")).json()["logprobs_mode"] == "raw"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_flush_forgets_every_prefix(real: Any, text: Any, method: str) -> None:
    prompt = {"prompt": "flush " + method * 20, "max_tokens": 1}

    async def cached() -> int:
        usage = (await real.post("/v1/completions", text(**prompt))).json()["usage"]
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    await cached()
    assert await cached() > 0
    response = await ask(real.app, method, "/flush_cache")
    assert (response.status, response.body) == (200, b"Cache flushed.\n")
    assert await cached() == 0


async def test_a_flush_waits_for_nobody(saying: Any, chat: Any) -> None:
    server = saying("x", script={"waits_after": 1, "gate": asyncio.Event()})
    async with server.call("/v1/chat/completions", chat(stream=True)):
        response = await server.post("/flush_cache", b"")
        assert response.status == 400
        assert response.json()["error"]["code"] == "cache_in_use"
    await server.until_idle()
    assert (await server.post("/flush_cache", b"")).status == 200


async def test_models_are_listed_and_found_by_name(saying: Any) -> None:
    server = saying("ok")
    models = (await server.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["tiny", "org/tiny"]
    assert (await server.get("/v1/models/org%2Ftiny")).json()["id"] == "org/tiny"
    assert (await server.get("/v1/models/org/tiny")).json()["created"] == 1_700_000_000
    assert (await server.get("/v1/models/nope")).json()["error"]["code"] == "model_not_found"


async def test_metrics_count_what_was_done(saying: Any) -> None:
    server = saying("a", "b")
    await server.chat()
    page = (await server.get("/metrics")).body.decode()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["skirret:generation_tokens_total",] == 3
    assert samples["skirret:request_success_total", "stop"] == 1
    assert samples["skirret:time_to_first_token_seconds_count",] == 1
    assert samples["skirret:inter_token_latency_seconds_count",] == 2
    assert samples["skirret:e2e_request_latency_seconds_count",] == 1
    assert samples["skirret:num_requests_running",] == 0
    assert samples["skirret:http_responses_total", "200"] == 1


async def test_files_are_elsewhere_when_they_are_off(saying: Any) -> None:
    server = saying("ok")
    mounts: list[Mount] = ELSEWHERE
    server.app._mounts = lambda: mounts
    for path in ("/v1/files", "/v1/files/file-1/content", "/v1/batches"):
        response = await server.get(path)
        assert response.status == 404
        assert "gateway" in response.json()["error"]["message"]


async def test_a_route_that_fails_is_a_500_that_tells_nothing(saying: Any, caplog: Any) -> None:
    server = saying("ok")

    def broken(*_: object) -> None:
        raise RuntimeError("the inside story")

    server.engine.generate = broken
    response = await server.chat()
    assert response.status == 500
    assert "inside story" not in response.json()["error"]["message"]
    assert "inside story" in caplog.text
