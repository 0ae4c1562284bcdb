"""Structural tags: free text until a trigger, then what its tag says, then free text again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from skirret_server.grammar.automaton import Automaton, Budget, automaton
from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.schema import Schema
from skirret_server.grammar.tags import _scan, structural_tag

DAY = {"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"]}
WHERE = {"enum": ["here", "there"]}
LEGACY = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=day>", "schema": DAY, "end": "</f>"},
        {"begin": "<f=where>", "schema": WHERE, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def compiled(source: Any) -> Automaton:
    return automaton(structural_tag(source, lambda one: Schema(one).tree(), Budget()))


def triggered(**options: Any) -> dict[str, Any]:
    tags = [
        {
            "begin": f"<f={name}>",
            "content": {"type": "json_schema", "json_schema": schema},
            "end": "</f>",
        }
        for name, schema in (("day", DAY), ("where", WHERE))
    ]
    tag = {"type": "triggered_tags", "triggers": ["<f="], "tags": tags, **options}
    return {"type": "structural_tag", "format": tag}


ONE, OTHER = '<f=day>{"day": 3}</f>', '<f=where>"here"</f>'


@pytest.mark.parametrize("source", [LEGACY, triggered()], ids=["legacy", "format"])
@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("Just text, 漢字 😀 and <f or </f> <<f", True),
        (f"Today is {ONE}, so {OTHER}{ONE}.", True),
        ("<<f=day>" + '{"day": 1}</f>', True),
        ("<f=", False),
        ("<f=night>{}</f>", False),
        ('<f=day>{"day": "x"}</f>', False),
        ('<f=where>{"day": 3}</f>', False),
        ("<f=day>", False),
        (f"{ONE}<f=", False),
    ],
)
def test_a_trigger_demands_one_of_its_tags(source: Any, text: str, matches: bool) -> None:
    assert compiled(source).matches(text.encode()) is matches


@pytest.mark.parametrize("words", [["abab", "abc"], ["aa", "ab"], ["é", "<<<"], ["abcab", "cab!"]])
def test_words_are_found_where_they_end_first(words: list[str]) -> None:
    chance = random.Random(1)
    free = automaton(_scan([each.encode() for each in words], None))
    until = {each: automaton(_scan([w.encode() for w in words], each.encode())) for each in words}
    for _ in range(3000):
        text = "".join(chance.choice("abc!é<") for _ in range(chance.randrange(10)))
        inside = [word for word in words if word in text[:-1] or word in text]
        assert free.matches(text.encode()) is (not inside)
        for word, found in until.items():
            is_first = text.endswith(word) and not any(each in text[:-1] for each in words)
            assert found.matches(text.encode()) is is_first, (text, word)


def test_free_text_is_made_of_whole_characters() -> None:
    found = compiled(LEGACY)
    assert not found.matches("😀".encode()[:2])
    assert found.step(1, "😀".encode()[:2])
    assert not found.step(1, b"\xff")


@pytest.mark.parametrize(
    ("options", "text", "matches"),
    [
        ({"at_least_one": True}, "", False),
        ({"at_least_one": True}, f"{ONE} and {OTHER}", True),
        ({"stop_after_first": True}, f"so {ONE}", True),
        ({"stop_after_first": True}, f"so {ONE}.", False),
        ({"stop_after_first": True}, "so it is", True),
        ({"at_least_one": True, "stop_after_first": True}, ONE, True),
        ({"at_least_one": True, "stop_after_first": True}, ONE + ONE, False),
    ],
)
def test_tags_can_be_demanded_and_be_the_last(
    options: dict[str, bool], text: str, matches: bool
) -> None:
    assert compiled(triggered(**options)).matches(text.encode()) is matches


@pytest.mark.parametrize(
    ("form", "text", "matches"),
    [
        ({"type": "const_string", "value": "a|b"}, "a|b", True),
        ({"type": "regex", "pattern": "[0-9]+"}, "12", True),
        ({"type": "grammar", "grammar": 'root ::= "a" root | "b"'}, "aab", True),
        ({"type": "any_text"}, "any <f=1> é", True),
        (
            {"type": "sequence", "elements": [
                {"type": "tag", "begin": "<think>", "content": {"type": "any_text"},
                 "end": "</think>"},
                {"type": "json_schema", "json_schema": WHERE},
            ]},
            '<think>so < so</think>"here"',
            True,
        ),
        (
            {"type": "sequence", "elements": [
                {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
                {"type": "const_string", "value": "!"},
            ]},
            "<t></t></t>!",
            False,
        ),
        ({"type": "or", "elements": [{"type": "const_string", "value": "b"}]}, "b", True),
        (
            {"type": "tags_with_separator", "separator": ",", "at_least_one": True,
             "tags": [{"begin": "(", "content": {"type": "regex", "pattern": "a*"}, "end": ")"}]},
            "(a),(),(aa)",
            True,
        ),
    ],
)  # fmt: skip
def test_formats(form: Any, text: str, matches: bool) -> None:
    found = compiled({"type": "structural_tag", "format": form})
    assert found.matches(text.encode()) is matches


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ([], "object"),
        ({"type": "structural_tag"}, "'structures' is missing"),
        ({**LEGACY, "structures": []}, "'structures'"),
        ({**LEGACY, "triggers": []}, "'triggers'"),
        ({**LEGACY, "triggers": [""]}, "'triggers'"),
        ({**LEGACY, "triggers": ["<g="]}, "'begin' starts with none"),
        ({**LEGACY, "triggers": ["<f=", "<f"]}, "part of another"),
        ({**LEGACY, "more": 1}, "'more'"),
        ({**LEGACY, "structures": [{"begin": "<f=", "end": ""}]}, "'schema' is missing"),
        ({**LEGACY, "structures": [{"begin": "", "schema": {}, "end": ""}]}, "'begin'"),
        ({**LEGACY, "structures": [{"begin": "<f=", "schema": {"not": {}}, "end": ""}]}, "'not'"),
        ({"format": {"type": "qwen_xml_parameter"}}, "'type' must be one of"),
        ({"format": {"type": "regex", "pattern": "("}}, "missing"),
        ({"format": {"type": "any_text", "excludes": ["a"]}}, "'excludes'"),
        (triggered(at_least_one=1), "'at_least_one'"),
        (triggered(triggers=["<f=", "x" * 1000]), "characters in all"),
        (triggered(triggers=["<f=", *map(chr, range(200, 240))]), "at most 32"),
    ],
)
def test_what_is_no_structural_tag_is_refused_by_name(source: Any, reason: str) -> None:
    with pytest.raises(BadGrammar, match=reason):
        compiled(source)


def test_formats_are_nested_so_deep_and_no_deeper() -> None:
    form: dict[str, Any] = {"type": "any_text"}
    for _ in range(40):
        form = {"type": "or", "elements": [form]}
    with pytest.raises(BadGrammar, match="levels"):
        compiled({"format": form})
