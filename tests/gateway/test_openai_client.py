"""The official client, through the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from skirret_gateway.testing import scripted
from skirret_gateway.testing.running import Start
from skirret_gateway.testing.scripted import DONE, ScriptedServer, event

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def client(start: Start, server: ScriptedServer) -> AsyncIterator[openai.AsyncOpenAI]:
    gateway = await start({"m": [server.url]})
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="any", max_retries=0, timeout=5
    ) as client:
        yield client


async def test_a_chat_is_answered(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m", messages=HELLO)
    assert answer.choices[0].message.content == "Paris"
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


async def test_a_stream_is_answered(client: openai.AsyncOpenAI, server: ScriptedServer) -> None:
    server.default = scripted.stream(
        event("Pa"), event("ris"), b": x-skirret-usage 1,0,2\n\n", DONE
    )
    stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
    assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "Paris"


async def test_a_stream_that_is_cut_raises(
    client: openai.AsyncOpenAI, server: ScriptedServer
) -> None:
    server.default = scripted.stream(event("Pa"), b'data: {"id', end=b"")
    stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
    assert (await anext(stream)).choices[0].delta.content == "Pa"
    with pytest.raises(openai.APIError, match="broke off"):
        await anext(stream)


async def test_an_unknown_model_raises_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        await client.chat.completions.create(model="nope", messages=HELLO)
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("a/b")


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).id == "m"
