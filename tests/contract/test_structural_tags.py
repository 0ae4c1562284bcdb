"""Structural tags on the real engine with two random layers; answers that are checked again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from skirret_server.api import checking

CHAT = "/v1/chat/completions"
WHERE = {"enum": ["here", "there"]}
LEGACY = {
    "structures": [{"begin": "<f=where>", "schema": WHERE, "end": "</f>"}],
    "triggers": ["<f="],
}
ONCE = {
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {
                "begin": "<f=where>",
                "content": {"type": "json_schema", "json_schema": WHERE},
                "end": "</f>",
            }
        ],
        "at_least_one": True,
        "stop_after_first": True,
    }
}
TAGGED = {'<f=where>"here"</f>', '<f=where>"there"</f>'}


def tagged(tag: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", **tag}


async def content(server: Any, body: dict[str, Any]) -> str:
    """Of a plain answer, after comparing the stream with it."""
    plain = await server.post(CHAT, body)
    assert plain.status == 200, plain.body
    found: str = plain.json()["choices"][0]["message"]["content"]
    events = await server.events(CHAT, body)
    pieces = [event["choices"][0]["delta"].get("content") for event in events]
    assert "".join(piece or "" for piece in pieces) == found
    return found


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": tagged(ONCE)},
        {"structural_tag": tagged(ONCE)},
        {"structural_tag": json.dumps(tagged(ONCE))},
        {"structured_outputs": {"structural_tag": json.dumps(ONCE)}},
    ],
    ids=["response_format", "object", "text", "structured_outputs"],
)
async def test_a_tag_that_must_come_comes(
    real: Any, chat: Callable[..., dict[str, Any]], extra: dict[str, Any]
) -> None:
    assert await content(real, chat(temperature=1, seed=4, max_tokens=60, **extra)) in TAGGED


async def test_free_text_turns_into_a_tag_at_its_trigger(
    real: Any, chat: Callable[..., dict[str, Any]]
) -> None:
    tag = {
        "structures": [{"begin": "<w>", "schema": WHERE, "end": "."}],
        "triggers": ["<"],
    }
    likely = {str(ord("<")): 5}
    body = chat(response_format=tagged(tag), logit_bias=likely, temperature=1, max_tokens=120)
    _, *tags = (await content(real, body | {"seed": 1})).split("<")
    assert len(tags) > 2
    for text in tags[:-1]:  # the last may be cut
        assert text.startswith(('w>"here".', 'w>"there".'))


async def test_sglangs_own_route_takes_tags_as_text(real: Any) -> None:
    options = {"structural_tag": json.dumps(tagged(ONCE)), "max_new_tokens": 60}
    response = await real.post("/generate", {"text": "who?", "sampling_params": options})
    assert response.json()["text"] in TAGGED


@pytest.mark.parametrize(
    ("extra", "param", "code", "reason"),
    [
        ({"response_format": tagged({})}, "response_format", "invalid_grammar", "structures"),
        ({"response_format": tagged({**LEGACY, "triggers": ["<g"]})}, "response_format",
         "invalid_grammar", "begin"),
        ({"response_format": tagged({**LEGACY, "structures": [
            {"begin": "<f=", "schema": {"not": {}}, "end": ""}]})}, "response_format",
         "invalid_grammar", "'not'"),
        ({"structural_tag": "{"}, "structural_tag", "invalid_grammar", "not JSON"),
        ({"structural_tag": tagged(LEGACY), "regex": "a"}, "structural_tag", "invalid_value",
         "Only one"),
    ],
)  # fmt: skip
async def test_a_tag_that_can_not_be_honoured_is_refused_by_name(
    real: Any, extra: dict[str, Any], param: str, code: str, reason: str
) -> None:
    response = await real.chat(**extra)
    assert response.status == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert reason in error["message"]


def counted(page: bytes, name: str) -> float:
    return next(
        float(line.split()[-1])
        for line in page.decode().splitlines()
        if line.startswith(f"skirret:{name}_total ")
    )


async def counts(server: Any) -> tuple[float, float]:
    page = (await server.get("/metrics")).body
    return counted(page, "structured_checks"), counted(page, "structured_violations")


CHECKING = {"checks_structured": True}


async def test_answers_that_keep_to_their_structure_are_checked_and_none_is_counted_as_broken(
    real: Any,
) -> None:
    server = type(real)(real.engine, real.tokenizer, real.template, settings=CHECKING)
    try:
        await server.chat(regex="[ab]{3}", n=2)
        await server.chat(json_schema={"type": "integer", "maximum": 9}, max_tokens=40)
        await server.chat(response_format=tagged(ONCE), max_tokens=60)
        await server.chat(regex="[ab]{30}", max_tokens=3)  # cut: nothing to check
        await server.chat(regex="[ab]{3}c", stop="c")
        await server.chat()
    finally:
        await server.grammars.close()
    assert await counts(server) == (4, 0)


async def test_a_check_that_fails_costs_no_answer(
    saying: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checking, "_broken", None)
    server = saying("ab", settings=CHECKING)
    assert (await server.chat(regex="ab")).status == 200
    await server.grammars.close()
    assert await counts(server) == (0, 0)
    assert "can't be checked" in caplog.text


@pytest.mark.parametrize(
    ("said", "extra", "rule"),
    [
        ('{"a": "x"}', {"json_schema": {"type": "string"}}, "json_schema"),
        ("zqx", {"regex": "ab"}, "regex"),
    ],
)
async def test_an_answer_that_breaks_its_structure_is_counted_and_its_text_is_not_logged(
    saying: Any, caplog: pytest.LogCaptureFixture, said: str, extra: dict[str, Any], rule: str
) -> None:
    server = saying(said, settings=CHECKING)
    with caplog.at_level(logging.ERROR):
        assert (await server.chat(**extra)).status == 200
    await server.grammars.close()
    assert await counts(server) == (1, 1)
    (record,) = (each for each in caplog.records if "breaks its rules" in each.message)
    assert record.__dict__["rule"] == rule
    assert said not in str(record.__dict__)
