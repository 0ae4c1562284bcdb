"""acceptance 4.5: log-probabilities."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skirret_server.core import Finish, GenerateRequest, Logprob, Update


def certain(request: GenerateRequest) -> AsyncIterator[Update]:
    """One token, with every other ruled out."""

    async def updates() -> AsyncIterator[Update]:
        top = ((97, 0.0), (98, -math.inf))[: request.sampling.logprobs]
        yield Update((97,), (Logprob(97, 0.0, top),), finish=Finish("length"))

    return updates()


async def test_infinity_never_reaches_the_body(saying: Any) -> None:
    """L1"""
    server = saying("a")
    server.engine.generate = certain
    response = await server.chat(logprobs=True, top_logprobs=20)
    assert b"Infinity" not in response.body
    top = response.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert [entry["logprob"] for entry in top] == [0.0, -9999.0]


async def test_chat_logprobs_have_the_chat_shape(saying: Any) -> None:
    """L2"""
    answer = await saying("a", "b").every_way(logprobs=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["a", "b"]
    assert all(
        set(entry) == {"token", "logprob", "bytes", "top_logprobs"} and not entry["top_logprobs"]
        for entry in entries
    )
    assert answer["choices"][0]["logprobs"]["refusal"] is None


async def test_zero_logprobs_is_on(saying: Any) -> None:
    """L4"""
    found = (await saying("a").text(logprobs=0)).json()["choices"][0]["logprobs"]
    assert found["tokens"] == ["a"]
    assert found["top_logprobs"] is None


async def test_offsets_count_from_the_beginning_of_the_prompt(saying: Any) -> None:
    """L5"""
    choice = (await saying("c", "d").text(prompt="ab", logprobs=1)).json()["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets[0] == 2
    assert offsets == sorted(offsets)
    whole = "ab" + choice["text"]
    for offset, token in zip(offsets, choice["logprobs"]["tokens"], strict=True):
        assert whole[offset:].startswith(token)


async def test_echo_without_new_tokens_scores_the_prompt(saying: Any) -> None:
    """L7, L8"""
    response = await saying("x").text(prompt="score me", echo=True, max_tokens=0, logprobs=1)
    answer = response.json()
    choice = answer["choices"][0]
    assert choice["text"] == "score me"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    scores = choice["logprobs"]["token_logprobs"]
    assert len(scores) == answer["usage"]["prompt_tokens"]
    assert scores[0] is None
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert all(isinstance(score, float) for score in scores[1:])


async def test_the_top_holds_as_many_as_were_asked_for_likeliest_first(saying: Any) -> None:
    """L10"""
    answer = await saying("a").every_way(logprobs=True, top_logprobs=3)
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    values = [entry["logprob"] for entry in top]
    assert len(values) == 3
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    "fault", [{"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 1}]
)
async def test_chat_logprobs_out_of_range_are_refused(saying: Any, fault: dict[str, Any]) -> None:
    """L14"""
    assert (await saying("a").chat(**fault)).status == 400


async def test_text_logprobs_out_of_range_are_refused(saying: Any) -> None:
    """L14"""
    assert (await saying("a").text(logprobs=6)).status == 400


def same_names(request: GenerateRequest) -> AsyncIterator[Update]:
    """Ids 256 ("he") and 300, a gap, have names of their own; 104 twice has one."""

    async def updates() -> AsyncIterator[Update]:
        yield Update((104,), (Logprob(104, -2.0, ((104, -1.0),)),), finish=Finish("length"))

    return updates()


async def test_of_two_tokens_with_one_name_the_likelier_stays(saying: Any) -> None:
    """L16"""
    server = saying("h")
    server.engine.generate = same_names
    found = (await server.text(logprobs=1)).json()["choices"][0]["logprobs"]
    assert found["top_logprobs"] == [{"h": -1.0}]


async def test_tokens_that_a_stop_removed_are_not_listed_but_counted(saying: Any) -> None:
    answer = await saying("a", "S", "T").every_way(logprobs=True, stop="ST")
    assert [e["token"] for e in answer["choices"][0]["logprobs"]["content"]] == ["a"]
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_token_that_a_stop_cut_is_listed(saying: Any) -> None:
    answer = await saying("aS", "T").every_way(logprobs=True, stop="ST")
    assert [e["token"] for e in answer["choices"][0]["logprobs"]["content"]] == ["aS"]


async def test_the_best_choices_are_those_with_the_likeliest_tokens(saying: Any) -> None:
    def scored(request: GenerateRequest) -> AsyncIterator[Update]:
        async def updates() -> AsyncIterator[Update]:
            token = 97 + int(request.id.rpartition("-")[2])
            yield Update((token,), (Logprob(token, -abs(token - 98.5)),), finish=Finish("length"))

        return updates()

    server = saying("x")
    server.engine.generate = scored
    answer = (await server.text(n=2, best_of=4, max_tokens=1)).json()
    assert sorted(choice["text"] for choice in answer["choices"]) == ["b", "c"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 4
