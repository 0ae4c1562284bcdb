"""OpenAI's own client, over sockets: what it sends, and what it makes of what we answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from skirret_gateway.gateway import Gateway, Settings
from skirret_server.testing import END_THINK, THINK

CALLED = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FLAT: Any = {"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True}
NESTED: Any = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
HI: list[Any] = [{"role": "user", "content": "hi"}]
MORE: dict[str, Any] = {"model": "tiny", "temperature": 0}


class City(BaseModel):
    name: Literal["Paris", "London"]
    is_big: bool


@asynccontextmanager
async def client_of(server: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        server.listening() as port,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0, timeout=20
        ) as client,
    ):
        yield client


async def test_a_response_is_read_whole_and_streamed(saying: Any) -> None:
    server = saying(THINK, "hm", END_THINK, "Hi ", " 😀".encode()[:3], " 😀".encode()[3:])
    async with client_of(server) as client:
        whole = await client.responses.create(input="hi", instructions="be kind", **MORE)
        async with client.responses.stream(input=HI, **MORE) as stream:
            text = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            final = await stream.get_final_response()
    assert whole.output_text == final.output_text == "".join(text) == "Hi  😀"
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert (final.status, whole.status) == ("completed", "completed")
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens > 0


async def test_a_response_calls_a_tool_and_goes_on_from_its_own_items(saying: Any) -> None:
    server = saying(*CALLED)
    async with client_of(server) as client:
        async with client.responses.stream(input=HI, tools=[FLAT], **MORE) as stream:
            final = await stream.get_final_response()
        (call,) = final.output
        assert call.type == "function_call"
        assert (call.name, call.parsed_arguments) == ("f", {"a": 1})
        again: list[Any] = [
            *HI,
            *final.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "2"},
        ]
        answer = await client.responses.create(input=again, tools=[FLAT], **MORE)
    assert answer.status == "completed"


async def test_a_response_is_parsed_into_its_type(real: Any) -> None:
    async with client_of(real) as client:
        parsed = await client.responses.parse(input="hi", text_format=City, **MORE)
        async with client.responses.stream(input="hi", text_format=City, **MORE) as stream:
            final = await stream.get_final_response()
    assert isinstance(parsed.output_parsed, City)
    assert final.output_parsed == parsed.output_parsed


async def test_a_response_that_breaks_off_raises(saying: Any) -> None:
    server = saying("a", "b", script={"fails_after": 1})
    async with client_of(server) as client:
        stream = await client.responses.create(input="hi", stream=True, **MORE)
        with pytest.raises(openai.APIError, match="error"):
            [event async for event in stream]


@pytest.mark.parametrize(
    ("fault", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"extra_body": {"stranger": 1}}, "stranger"),
        ({"input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "data:,", "detail": "auto"}]}]},
         "input[0].content[0]"),
    ],
)  # fmt: skip
async def test_a_response_that_can_not_be_is_a_bad_request(
    saying: Any, fault: dict[str, Any], param: str
) -> None:
    async with client_of(saying("ok")) as client:
        with pytest.raises(openai.BadRequestError) as error:
            await client.responses.create(**{"input": "hi", **MORE, **fault})
    assert error.value.param == param


async def test_a_chat_is_read_whole_streamed_and_parsed(real: Any) -> None:
    async with client_of(real) as client:
        parsed = await client.chat.completions.parse(messages=HI, response_format=City, **MORE)
        async with client.chat.completions.stream(
            messages=HI, response_format=City, **MORE
        ) as stream:
            final = await stream.get_final_completion()
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(
                messages=HI, response_format=City, max_tokens=2, **MORE
            )
    assert isinstance(parsed.choices[0].message.parsed, City)
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


async def test_every_choice_calls_its_own_tools(real: Any) -> None:
    async with client_of(real) as client, client.chat.completions.stream(
        messages=HI, tools=[NESTED], tool_choice="required", parallel_tool_calls=False, n=3,
        logprobs=True, **{**MORE, "temperature": 1, "seed": 5},
    ) as stream:  # fmt: skip
        final = await stream.get_final_completion()
    assert [choice.finish_reason for choice in final.choices] == ["tool_calls"] * 3
    for choice in final.choices:
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert set(json.loads(call.function.arguments)) == {"a"}


async def test_a_chat_that_breaks_off_raises(saying: Any) -> None:
    server = saying("a", "b", "c", "d", script={"fails_after": 3})
    async with client_of(server) as client:
        stream = await client.chat.completions.create(messages=HI, stream=True, **MORE)
        with pytest.raises(openai.APIError, match="error"):
            [chunk async for chunk in stream]


async def test_embeddings_are_refused_by_name(saying: Any) -> None:
    async with client_of(saying("ok")) as client:
        with pytest.raises(openai.NotFoundError, match="no embeddings") as error:
            await client.embeddings.create(model="tiny", input="hi")
    assert error.value.code == "unsupported_endpoint"


async def test_models_are_listed_and_found(saying: Any) -> None:
    async with client_of(saying("ok")) as client:
        assert [model.id async for model in client.models.list()] == ["tiny", "org/tiny"]
        assert (await client.models.retrieve("org/tiny")).id == "org/tiny"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nope")


async def test_responses_pass_the_gateway(saying: Any, tmp_path: Path) -> None:
    endpoints = tmp_path / "endpoints.json"
    async with saying("Hi ", "there").listening() as port:
        endpoints.write_text(json.dumps({"tiny": [f"http://127.0.0.1:{port}"]}))
        gateway = Gateway(Settings(host="127.0.0.1", port=0, endpoints=endpoints))
        await gateway.start()
        url = f"http://127.0.0.1:{gateway.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            async with client.responses.stream(input="hi", **MORE) as stream:
                final = await stream.get_final_response()
            with pytest.raises(openai.BadRequestError) as error:
                await client.responses.create(input="hi", store=True, **MORE)
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(input="hi", model="nope")
        await gateway.stop()
    assert final.output_text == "Hi there"
    assert error.value.param == "store"
