"""acceptance 4.9, as far as the API decides it: what reaches the engine."""

from __future__ import annotations

from typing import Any

import pytest

SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "seed": 7,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.5,
    "min_tokens": 2,
    "ignore_eos": True,
}


@pytest.mark.parametrize("name", sorted(SAMPLING))
async def test_every_sampling_parameter_reaches_the_engine(saying: Any, name: str) -> None:
    """P1"""
    server = saying("a", "b", "c")
    assert (await server.chat(**SAMPLING, max_tokens=3)).status == 200
    assert getattr(server.engine.requests[-1].sampling, name) == SAMPLING[name]


async def test_a_bias_is_given_by_number(saying: Any) -> None:
    server = saying("ok")
    await server.chat(logit_bias={"5": -100, "7": 1})
    assert server.engine.requests[-1].sampling.logit_bias == {5: -100, 7: 1}


async def test_a_top_p_of_zero_is_the_likeliest_token(saying: Any) -> None:
    server = saying("ok")
    await server.chat(top_p=0, temperature=1)
    sampling = server.engine.requests[-1].sampling
    assert (sampling.top_k, sampling.top_p) == (1, 1.0)


async def test_choices_draw_from_seeds_of_their_own_and_the_same_each_time(saying: Any) -> None:
    """P7"""
    server = saying("ok")
    await server.chat(n=3, seed=7, temperature=1)
    await server.chat(n=3, seed=7, temperature=1)
    seeds = [request.sampling.seed for request in server.engine.requests]
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3
    assert seeds[0] == 7


async def test_without_a_seed_the_engine_chooses(saying: Any) -> None:
    server = saying("ok")
    await server.chat(n=2)
    assert [request.sampling.seed for request in server.engine.requests] == [None, None]


async def test_flex_is_the_batch_lane(saying: Any) -> None:
    server = saying("ok")
    answer = (await server.chat(service_tier="flex")).json()
    assert answer["service_tier"] == "flex"
    assert server.engine.requests[-1].lane == "batch"
    await server.chat(service_tier="auto")
    assert server.engine.requests[-1].lane == "interactive"
