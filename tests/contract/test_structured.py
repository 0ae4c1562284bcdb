"""acceptance 4.6: structured output, on the real engine with two random layers."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from typing import Any

import pytest

CAPITAL = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[\\w]+$"},
        "population": {"type": "integer"},
    },
    "required": ["name", "population"],
}


def schema_format(schema: Any, name: str = "foo") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def content(answer: dict[str, Any]) -> str:
    found: str = answer["choices"][0]["message"]["content"]
    return found


def forced(text: str) -> dict[str, Any]:
    """F("…"): the output is exactly this text, whatever the weights."""
    return {"regex": re.escape(text)}


@pytest.mark.parametrize("text", ["ABC", "😀é漢", "ab\n\ncd", "a\u2028b", "  x  "])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_literal_is_all_that_comes(real: Any, text: str, n: int) -> None:
    """U1, U8"""
    answer = await real.every_way(**forced(text), n=n)
    assert [c["message"]["content"] for c in answer["choices"]] == [text] * n
    assert {c["finish_reason"] for c in answer["choices"]} == {"stop"}


async def test_a_stop_cuts_a_forced_text(real: Any) -> None:
    """S1, S4, S16"""
    answer = await real.every_way(**forced("ABCDEFGHIJ!"), stop="DEFGHIJ")
    assert content(answer) == "ABC"
    answer = await real.every_way(**forced("abcDEF"), stop="DEFG")
    assert content(answer) == "abcDEF"
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(Paris|London)", r"Paris|London"),
        ("a|ab", "a|ab"),
        ("[一-龥]{2}", "[一-龥]{2}"),
        ("(😀|😁)", "😀|😁"),
        ("前缀[0-9]", "前缀[0-9]"),
        ("[01]", "[01]"),
    ],
)
async def test_a_regex_is_matched_by_the_whole_text(real: Any, pattern: str, expected: str) -> None:
    """G13, G14"""
    for seed in range(3):
        answer = await real.every_way(regex=pattern, temperature=1, seed=seed)
        assert re.fullmatch(expected, content(answer))


async def test_the_documents_example_gives_a_capital(real: Any) -> None:
    """G25"""
    answer = await real.every_way(
        response_format=schema_format(CAPITAL), temperature=1, seed=3, max_tokens=400
    )
    if answer["choices"][0]["finish_reason"] == "stop":
        capital = json.loads(content(answer))
        assert set(capital) == {"name", "population"}


async def test_a_json_object_never_wanders_in_whitespace(real: Any) -> None:
    """G11"""
    answer = await real.every_way(response_format={"type": "json_object"}, max_tokens=200)
    text = content(answer)
    assert text.startswith("{")
    outside = re.sub(r'"(?:[^"\\]|\\.)*"?', "", text)
    assert not re.search(r"\s\s", outside)


@pytest.mark.parametrize(
    "extra",
    [
        {"json_schema": json.dumps({"enum": ["yes"]})},
        {"json_schema": {"enum": ["yes"]}},
        {"guided_json": {"const": "yes"}},
        {"guided_choice": ['"yes"']},
        {"guided_regex": '"yes"'},
        {"structured_outputs": {"json": {"const": "yes"}}},
        {"structured_outputs": {"choice": ['"yes"']}},
        {"response_format": schema_format({"const": "yes"})},
        {"ebnf": r'root ::= "\"yes\""'},
        {"guided_grammar": r'root ::= "\"" "yes" "\""'},
        {"structured_outputs": {"grammar": r'root ::= "\"yes\""'}},
    ],
)
async def test_every_spelling_is_enforced(real: Any, extra: dict[str, Any]) -> None:
    assert content(await real.every_way(**extra)) == '"yes"'


async def test_a_text_completion_is_enforced_too(real: Any) -> None:
    """S14"""
    response = await real.text(prompt="END", echo=True, stop="END", **forced("xEND"))
    assert response.json()["choices"][0]["text"] == "ENDx"


FAULTS = [
    pytest.param({"regex": "("}, "regex", "invalid_grammar", id="G1"),
    pytest.param({"response_format": schema_format({"type": "strng"})}, "response_format",
                 "invalid_json_schema", id="G2"),
    pytest.param({"response_format": schema_format({"type": "object", "not": {}})},
                 "response_format", "invalid_json_schema", id="G4"),
    pytest.param({"response_format": schema_format({"$ref": "#/nope"})}, "response_format",
                 "invalid_json_schema", id="G5-ref"),
    pytest.param({"response_format": schema_format([])}, "response_format",
                 "invalid_json_schema", id="G5-list"),
    pytest.param({"response_format": schema_format("x")}, "response_format",
                 "invalid_json_schema", id="G5-string"),
    pytest.param({"regex": "((a{0,99}){0,99}){0,99}"}, "regex", "grammar_too_complex", id="G17"),
    pytest.param(
        {"response_format": schema_format(
            {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}})},
        "response_format", "grammar_too_complex", id="G17-wide"),
    pytest.param({"regex": "a", "ebnf": 'root ::= "b"'}, "ebnf", "invalid_value", id="G23"),
    pytest.param({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
                 "response_format.json_schema.name", "missing_required_parameter", id="G28"),
    pytest.param({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value",
                 id="G29"),
    pytest.param({"regex": ""}, "regex", "string_below_min_length", id="G31"),
    pytest.param({"json_schema": "{"}, "json_schema", "invalid_json_schema", id="no-json"),
    pytest.param({"ebnf": "root ::= root"}, "ebnf", "invalid_grammar", id="recursive"),
    pytest.param({"regex": "a", "structured_outputs": {"json": {}}}, "structured_outputs.json",
                 "invalid_value", id="twice"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "param", "code"), FAULTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_can_not_be_honoured_is_refused(
    real: Any, fault: dict[str, Any], param: str, code: str, stream: bool
) -> None:
    response = await real.chat(**fault, stream=stream)
    assert response.status == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert (await real.chat(max_tokens=1)).status == 200


async def test_bad_grammars_hurt_no_other_request(real: Any) -> None:
    """G16"""
    bad = [
        real.chat(response_format=schema_format({"type": "strng", "title": str(i)}))
        for i in range(20)
    ]
    good = [real.chat(max_tokens=2) for _ in range(20)]
    statuses = [response.status for response in await asyncio.gather(*bad, *good)]
    assert statuses == [400] * 20 + [200] * 20


async def test_a_schema_cut_by_the_length_says_so(real: Any) -> None:
    """G26"""
    answer = await real.every_way(response_format=schema_format(CAPITAL), max_tokens=2)
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_bias_does_not_beat_the_grammar(real: Any) -> None:
    """G32"""
    answer = await real.every_way(**forced("a"), logit_bias={"98": 100})
    assert content(answer) == "a"


async def test_the_grammars_end_wins_over_ignore_eos(real: Any) -> None:
    answer = await real.every_way(**forced("ab"), ignore_eos=True)
    assert content(answer) == "ab"
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_what_must_be_escaped_is(real: Any) -> None:
    """G34"""
    values = ['a"b', "c\\d", "e\nf"]
    answer = await real.every_way(
        response_format=schema_format({"enum": values}), temperature=1, seed=2
    )
    assert json.loads(content(answer)) in values


async def test_logprobs_under_a_grammar_are_finite(real: Any) -> None:
    """L1, U5"""
    answer = await real.every_way(regex="[01]", logprobs=True, top_logprobs=20)
    entry = answer["choices"][0]["logprobs"]["content"][0]
    assert len(entry["top_logprobs"]) == 20
    assert all(-10_000 < one["logprob"] <= 0 for one in entry["top_logprobs"])
    answer = await real.every_way(**forced("😀"), logprobs=True, top_logprobs=2)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == "😀"


async def test_a_keyword_that_passes_is_named_in_a_header(real: Any) -> None:
    schema = {"type": "string", "format": "colour", "maxLength": 1}
    response = await real.chat(response_format=schema_format(schema))
    assert response.headers["x-unenforced"] == "format:colour"


async def test_a_caller_that_leaves_while_it_compiles_leaves_nothing(real: Any) -> None:
    """A4"""
    wide = schema_format({"type": "object", "properties": {f"p{i}": {} for i in range(200)}})
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    waiting = asyncio.create_task(
        real.post("/v1/chat/completions", body | {"response_format": wide})
    )
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert real.lifecycle.running == 0
    assert content(await real.every_way(**forced("ok"))) == "ok"


async def test_a_grammar_too_large_holds_up_nobody(real: Any, chat: Any) -> None:
    """G17"""
    wide = {"type": "object", "properties": {f"q{i}": {} for i in range(3000)}}
    quiet = await longest_gap(real, chat)
    task = asyncio.create_task(longest_gap(real, chat))
    answers = await asyncio.gather(
        real.chat(regex="((b{0,99}){0,99}){0,99}"), real.chat(json_schema=wide)
    )
    assert [a.json()["error"]["code"] for a in answers] == ["grammar_too_complex"] * 2
    # On a busy machine even nobody's presence makes gaps.
    assert await task < max(0.2, 4 * quiet)


async def longest_gap(server: Any, chat: Any) -> float:
    """Seconds between two pieces of a stream, at most."""
    loop = asyncio.get_running_loop()
    body = chat(stream=True, max_tokens=150, ignore_eos=True)
    async with server.call("/v1/chat/completions", body) as call:
        times = [loop.time() async for _ in call.pieces()]
    return max(later - earlier for earlier, later in pairwise(times))
