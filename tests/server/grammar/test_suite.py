"""The JSON Schema Test Suite: no invalid value can be written, and valid ones can or we say why."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from skirret_server.grammar import json_text
from skirret_server.grammar.automaton import Automaton, automaton
from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.keywords import ANNOTATIONS, ENFORCED, KEYWORDS
from skirret_server.grammar.schema import Schema
from skirret_server.grammar.values import plain

FOLDER = Path(__file__).parent / "json-schema-test-suite"
FILES = sorted(FOLDER.glob("draft*/*.json"))

# Where a schema gives no type we write values of the type that its keywords speak of.
SPOKEN_OF = {
    "object": {"properties", "required", "additionalProperties", "minProperties",
               "maxProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}  # fmt: skip
KINDS = {dict: "object", list: "array", str: "string", int: "number", float: "number"}
# Values of formats that we don't write: leap seconds, lower case, quoted and literal addresses.
RARE = ("leap second", "case-insensitive", "fifteen nines", "tilde", "quoted", "address-literal",
        "large")  # fmt: skip
# The same reasons, deeper in a value.
NARROWED = {
    ("anyOf", "both anyOf valid (complex)"),  # an undeclared property of the alternative
    ("ref", "match"),  # false is no object
    ("ref", "recursive match"),
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_no_invalid_value_is_written_and_every_valid_one_can_be(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Values that no schema describes are as deep as the cases ask, or compiling takes minutes.
    whole, deep = json_text.value, 4 if file.stem == "uniqueItems" else 2
    monkeypatch.setattr(json_text, "value", lambda depth=deep: whole(depth))
    counts: Counter[str] = Counter()
    for group in json.loads(file.read_text()):
        found = compiled(group["schema"])
        if found is None:
            counts["refused"] += 1
            continue
        for case in group["tests"]:
            is_written = any(found.matches(text) for text in texts(case["data"]))
            if not case["valid"]:
                assert not is_written, (group["description"], case["description"])
                counts["invalid, never written"] += 1
            elif is_written:
                counts["valid, written"] += 1
            else:
                assert is_narrowed(group["schema"], case, file.stem), (group, case)
                counts["valid, not written"] += 1
    print(f"{file.parent.name} {file.stem}: {dict(counts)}")
    assert counts


def compiled(schema: Any) -> Automaton | None:
    """None when it is refused: by the name of a keyword, or since nothing is valid."""
    try:
        return automaton(Schema(schema).tree())
    except BadGrammar as error:
        if not any(f"'{keyword}'" in str(error) for keyword in KEYWORDS):
            assert_says_nothing_is_valid(error)
        return None


def assert_says_nothing_is_valid(error: BadGrammar) -> None:
    assert "no value is valid" in str(error)


def texts(value: Any) -> Iterator[bytes]:
    """The value as JSON, written in several ways."""
    values = [value, plain(value)]
    if isinstance(value, dict) and len(value) <= 4:
        values += [dict(members) for members in itertools.permutations(value.items())]
    for one in values:
        for separators in ((", ", ": "), (",", ":")):
            yield json.dumps(one, ensure_ascii=False, separators=separators).encode()
    yield json.dumps(value).encode()


def is_narrowed(schema: Any, case: Mapping[str, Any], keyword: str) -> bool:
    """Whether it is one of those valid values that we say we never write."""
    if (keyword, case["description"]) in NARROWED:
        return True
    if keyword.startswith("format-") and any(word in case["description"] for word in RARE):
        return True
    kind = KINDS.get(type(case["data"]))
    spoken_of = {one for one, keywords in SPOKEN_OF.items() if keywords & schema.keys()}
    if "type" not in schema and spoken_of and kind not in spoken_of:
        return True
    return kind == "object" and bool(set(case["data"]) - set(schema.get("properties", ())))


@pytest.mark.parametrize("draft", ["draft-07", "draft/2019-09", "draft/2020-12"])
def test_the_table_has_every_keyword_of_the_drafts(draft: str) -> None:
    found = {
        keyword
        for address in REGISTRY
        if f"json-schema.org/{draft}/" in address
        for keyword in REGISTRY[address].contents.get("properties", ())
    }
    assert "maxLength" in found
    assert found - set(KEYWORDS) == set()


def test_every_keyword_that_is_enforced_has_cases() -> None:
    words = {word for file in FILES for word in _keywords(json.loads(file.read_text()))}
    assert ENFORCED - words == set()


def test_no_keyword_of_a_test_is_both_enforced_and_an_annotation() -> None:
    assert not ENFORCED & ANNOTATIONS


def _keywords(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, (dict, list)):
            yield from _keywords(one)
