"""The API through the gateway, with the official client."""

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from skirret_local.installation import Site

QUESTION: list[ChatCompletionUserMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


def test_a_question_is_answered(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=32
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_says_the_same_as_a_plain_answer(client: OpenAI, model: str) -> None:
    plain = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=32
    )
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=32, stream=True
    )
    text = "".join(x.choices[0].delta.content or "" for x in stream if x.choices)
    assert text == plain.choices[0].message.content


def test_a_completion_goes_on_from_its_prompt(client: OpenAI, model: str) -> None:
    done = client.completions.create(
        model=model, prompt="The capital of France is", temperature=0, max_tokens=4
    )
    assert "Paris" in done.choices[0].text


def test_a_second_turn_finds_the_first_in_the_cache(client: OpenAI, model: str) -> None:
    history: list[ChatCompletionUserMessageParam] = [
        {"role": "user", "content": "Count slowly from one to thirty. " * 8}
    ]
    for _ in range(2):
        answer = client.chat.completions.create(model=model, messages=history, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) >= 64


def test_every_model_is_listed(client: OpenAI, model: str) -> None:
    assert model in [x.id for x in client.models.list()]


def test_a_model_nobody_applied_is_not_found(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nobody", messages=QUESTION)
    assert error.value.code == "model_not_found"


def test_a_wrong_parameter_is_named(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=3)
    assert error.value.param == "temperature"


def test_clients_cannot_set_internal_headers(site: Site, model: str) -> None:
    answer = httpx.post(
        f"{site.gateway()}/v1/chat/completions",
        json={"model": model, "messages": QUESTION, "max_tokens": 1},
        headers={"x-skirret-token": "guess", "x-skirret-served-name": "other"},
        timeout=60,
    )
    assert answer.status_code == 200
    assert answer.json()["model"] == model
    assert not [name for name in answer.headers if name.startswith("x-skirret-")]


def test_an_unknown_route_has_the_error_envelope(site: Site) -> None:
    answer = httpx.get(f"{site.gateway()}/v1/nothing")
    assert (answer.status_code, set(answer.json())) == (404, {"error"})
