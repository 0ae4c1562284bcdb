"""acceptance 4.9 by formula: the real engine on a model whose logits are always the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from skirret_server.testing import IM_END, TINY_VOCABULARY, tiny_model

A, B, C = b"ABC"
LOGITS = {A: 1.0, B: 0.9, C: -2.0}


def constant_model(folder: Path, logits: Mapping[int, float]) -> Path:
    """A tiny model that gives these logits at every position, and -30 to all other tokens."""
    path = tiny_model(folder) / "model.safetensors"
    weights = load_file(path)
    for name, weight in weights.items():
        weights[name] = (np.ones_like if "embed" in name or "norm" in name else np.zeros_like)(
            weight
        )
    head = weights["lm_head.weight"]
    for token in range(TINY_VOCABULARY):
        head[token] = logits.get(token, -30.0) / head.shape[1]
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, opening: Any) -> Iterator[Any]:
    with opening(constant_model(tmp_path_factory.mktemp("constant"), LOGITS)) as found:
        yield found


@pytest.fixture
def constant(saying: Any, engine: Any) -> Any:
    return saying(engine=engine)


def said(answer: dict[str, Any]) -> str:
    found: str = answer["choices"][0]["message"]["content"]
    return found


def by_formula(tokens: int, *, frequency: float = 0, presence: float = 0) -> str:
    """What greedy sampling says under these penalties."""
    text = ""
    for _ in range(tokens):
        text += max(
            "ABC",
            key=lambda letter: (
                LOGITS[ord(letter)] - frequency * text.count(letter) - presence * (letter in text)
            ),
        )
    return text


CASES = [
    pytest.param({"frequency_penalty": 2}, 4, "ABAB", id="P1"),
    pytest.param({"frequency_penalty": 0.03}, 30, by_formula(30, frequency=0.03), id="P4"),
    pytest.param({"presence_penalty": 1}, 6, by_formula(6, presence=1), id="P5-presence"),
    pytest.param({"frequency_penalty": 1}, 6, by_formula(6, frequency=1), id="P5-frequency"),
    pytest.param({"presence_penalty": -2}, 4, "AAAA", id="P5-negative"),
    pytest.param({"repetition_penalty": 1.2}, 2, "AB", id="repetition"),
    pytest.param({"logit_bias": {str(B): 1}}, 3, "BBB", id="bias"),
    pytest.param({"logit_bias": {str(A): -100, str(B): -100}}, 2, "CC", id="L13"),
    pytest.param({"temperature": 2, "top_k": 1, "seed": 1}, 5, "AAAAA", id="top_k"),
    pytest.param({"temperature": 2, "top_p": 0, "seed": 1}, 5, "AAAAA", id="top_p-zero"),
    pytest.param({"temperature": 2, "top_p": 0.3, "seed": 1}, 5, "AAAAA", id="top_p"),
    pytest.param({"temperature": 2, "min_p": 0.99, "seed": 1}, 5, "AAAAA", id="min_p"),
    pytest.param({"temperature": 1e-30}, 3, "AAA", id="V7"),
    pytest.param({"logit_bias": {str(IM_END): 50}, "min_tokens": 3}, 9, "AAA", id="min_tokens"),
    pytest.param({"logit_bias": {str(IM_END): 50}}, 9, "", id="eos"),
    pytest.param({"logit_bias": {str(IM_END): 50}, "ignore_eos": True,
                  "skip_special_tokens": False}, 2, "<|im_end|>" * 2, id="ignore_eos"),
    pytest.param({"frequency_penalty": 2, "stop_token_ids": [B]}, 9, "A", id="stop-token"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "tokens", "expected"), CASES)
async def test_what_is_said_is_what_the_formula_says(
    constant: Any, body: dict[str, Any], tokens: int, expected: str
) -> None:
    """P1, P4, P5, V7, L13"""
    answer = await constant.every_way(**{"max_tokens": tokens, "logprobs": True, **body})
    assert said(answer) == expected
    for entry in (answer["choices"][0]["logprobs"] or {"content": ()})["content"]:
        assert entry["logprob"] <= 0


async def test_neighbours_change_no_penalty_and_no_draw(constant: Any) -> None:
    """P2, P8"""
    bodies = [
        {"frequency_penalty": 2, "max_tokens": 12},
        {"temperature": 1, "seed": 7, "n": 3, "max_tokens": 12},
    ]
    alone = [(await constant.chat(**body)).json()["choices"] for body in bodies]
    crowd = [constant.chat(temperature=1, max_tokens=20 + i) for i in range(14)]
    *_, first, second = await asyncio.gather(*crowd, *(constant.chat(**body) for body in bodies))
    assert [first.json()["choices"], second.json()["choices"]] == alone


async def test_choices_of_one_seed_differ_and_come_again(constant: Any) -> None:
    """P7, R4"""
    answer = await constant.every_way(n=3, temperature=1, seed=7, max_tokens=16)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(set(texts)) == 3
    assert await constant.every_way(n=3, temperature=1, seed=7, max_tokens=16) == answer


async def test_a_seed_of_zero_is_a_seed(constant: Any) -> None:
    """V4"""
    body = {"temperature": 1, "max_tokens": 24}
    zeros = {said((await constant.chat(**body, seed=0)).json()) for _ in range(3)}
    unset = {said((await constant.chat(**body)).json()) for _ in range(3)}
    assert len(zeros) == 1
    assert len(unset) > 1


async def test_the_top_holds_the_likeliest_in_order_and_by_value(constant: Any) -> None:
    """L10"""
    answer = await constant.every_way(logprobs=True, top_logprobs=3, max_tokens=1)
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert [entry["token"] for entry in top] == ["A", "B", "C"]
    total = np.log(sum(np.exp(logit) for logit in LOGITS.values()))
    for entry, logit in zip(top, LOGITS.values(), strict=True):
        assert entry["logprob"] == pytest.approx(logit - total, abs=1e-3)


async def test_a_prompt_is_scored_by_what_came_before_each_token(constant: Any) -> None:
    """L7, L8"""
    answer = await constant.text_every_way(prompt="AB", echo=True, max_tokens=0, logprobs=1)
    scores = answer["choices"][0]["logprobs"]
    total = np.log(sum(np.exp(logit) for logit in LOGITS.values()))
    assert scores["tokens"] == ["A", "B"]
    assert scores["token_logprobs"] == [None, pytest.approx(LOGITS[B] - total, abs=1e-3)]
    assert set(scores["top_logprobs"][1]) == {"A", "B"}
