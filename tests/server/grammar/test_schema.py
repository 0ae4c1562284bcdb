"""JSON Schemas: what is generated is always valid, and what can't be enforced is refused."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from skirret_server.grammar.automaton import Automaton, automaton
from skirret_server.grammar.digits import Bound, integer, number
from skirret_server.grammar.errors import BadGrammar, GrammarError, TooComplex
from skirret_server.grammar.keywords import REFUSED
from skirret_server.grammar.schema import Schema, any_json_object


def compiled(schema: Any) -> Automaton:
    return automaton(Schema(schema).tree())


def accepts(schema: Any, value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return compiled(schema).matches(text.encode())


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": -12, "maximum": 345}, 99),
        ({"type": "integer", "minimum": -12, "maximum": 345}, -12),
        ({"type": "integer", "minimum": -12, "maximum": 345}, 345),
        ({"type": "integer", "minimum": -12, "maximum": 345}, 0),
        ({"type": "number", "minimum": -3, "maximum": 10}, 9.99),
        ({"type": "number", "minimum": -3, "maximum": 10}, -2.5),
        ({"type": "string", "pattern": "b"}, "abc"),
        ({"type": "string", "maxLength": 2}, "😀é"),
        ({"type": "string", "pattern": '^"$'}, '"'),
        ({"type": "string", "format": "date-time"}, "2026-11-29T19:42:44.646+01:00"),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, {"b": 1}),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, {"a": None, "b": []}),
        ({"type": "object", "properties": {"ab": {}}, "additionalProperties": True}, {"a": 1}),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, {"ab": 1}),
        ({"properties": {"a": {"const": 1}}, "additionalProperties": True}, {"a": 1, "b": {}}),
        ({"type": "object"}, {"any": [1]}),
        ({"type": "string", "pattern": "^a+$", "maxLength": 2, "minLength": 2}, "aa"),
        ({"type": "string", "format": "date"}, "2028-02-29"),
        ({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 1}, 0.07),
        ({"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 1}, 1.0),
        ({"type": "number", "multipleOf": 2.5}, -7.5),
        ({"type": "integer", "multipleOf": 60, "maximum": 86400}, 86400),
        ({"type": "number", "exclusiveMinimum": 0}, 0.001),
        ({"type": "number", "minimum": 0.5, "exclusiveMaximum": 0.75}, 0.7499),
        ({"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}, ["c", "a", "b"]),
        ({"items": [{"const": 1}], "additionalItems": {"const": 2}}, [1, 2, 2]),
        ({"$ref": "#/$defs/a%25b", "$defs": {"a%b": {"const": 1}}}, 1),
        ({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}}, [1, 2, 2]),
        (True, {"a": [1, {"b": [None]}]}),
    ],
)
def test_ordinary_values_can_be_generated(schema: Any, value: Any) -> None:
    assert accepts(schema, value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": -12, "maximum": 345}, 346),
        ({"type": "integer", "minimum": -12, "maximum": 345}, -13),
        ({"type": "number", "maximum": 10}, 10.5),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, {"b": 1}),
        ({"properties": {"a": {"const": 1}}, "additionalProperties": True}, {"a": 2}),
        ({"type": "string", "minLength": 2}, "😀"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 2}, "aaa"),
        ({"type": "string", "format": "date"}, "2100-02-29"),
        ({"type": "number", "multipleOf": 0.01}, 0.075),
        ({"type": "integer", "multipleOf": 7}, 8),
        ({"type": "number", "exclusiveMinimum": 0}, 0),
        ({"type": "number", "minimum": 0.5, "exclusiveMaximum": 0.75}, 0.75),
        ({"type": "number", "minimum": 0.5}, 0.4999),
        ({"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}, ["c", "a", "c"]),
        ({"allOf": [{"enum": [1, "a"]}, {"enum": [True, "a"]}]}, True),
    ],
)
def test_what_a_schema_forbids_is_never_generated(schema: Any, value: Any) -> None:
    """G22"""
    assert not accepts(schema, value)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strng"}, "strng"),
        ({"type": "object", "not": {}}, "not"),
        ({"$ref": "#/nope"}, "nope"),
        ({"$ref": "https://example.com/x"}, "point into"),
        ([], "object or a boolean"),
        ("x", "object or a boolean"),
        (False, "no value is valid"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"type": "number", "multipleOf": 0}, "more than zero"),
        ({"type": "integer", "multipleOf": 1234567}, "multipleOf"),
        ({"type": "integer", "minimum": 10**20}, "no value is valid"),
        ({"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 13}, "no value is valid"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no value is valid"),
        ({"type": "number", "exclusiveMinimum": True}, "must be a number"),
        ({"uniqueItems": True, "items": {"enum": list(range(14))}}, "uniqueItems"),
        ({"uniqueItems": True, "items": {"enum": [1, 1.0]}, "minItems": 2}, "no value is valid"),
        ({"uniqueItems": 1}, "true or false"),
        ({"$defs": {"a": {"$id": "b", "type": "null"}}, "$ref": "#/$defs/a"}, "id"),
        ({"format": {}}, "format"),
        ({"allOf": [{"$ref": []}]}, "ref"),
        ({"enum": [1], "const": True}, "no value is valid"),
        ({"const": 1, "allOf": [{"const": True}]}, "no value is valid"),
        ({"prefixItems": [{}], "allOf": [{"items": {"type": "null"}}]}, "prefixItems"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "oneOf"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no value is valid"),
        ({"enum": []}, "enum"),
        ({"enum": [1], "minimum": 3}, "no value is valid"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"$ref": "#"}, "no value is valid"),
        ({"required": ["a"], "properties": {}, "additionalProperties": False}, "no value"),
        ({"minLength": -1}, "minLength"),
        ({"properties": []}, "properties"),
        ({"required": "a"}, "required"),
        *(({keyword: {}}, keyword.replace("$", r"\$")) for keyword in sorted(REFUSED)),
    ],
)  # fmt: skip
def test_what_can_not_be_enforced_is_refused_by_name(schema: Any, reason: str) -> None:
    """G2, G4, G5, G8, G10"""
    with pytest.raises(BadGrammar, match=reason):
        compiled(schema)


@pytest.mark.parametrize(
    "keywords",
    [
        ("type", 3, "string"), ("required", 3, ["a"]), ("properties", [], {"a": {}}),
        ("enum", 3, [1]), ("minimum", "a", 1), ("pattern", 3, "a"),
        ("type", [{}], "string"), ("prefixItems", {}, []),
    ],
    ids=lambda keywords: f"{keywords[0]}-{keywords[1]}",
)  # fmt: skip
@pytest.mark.parametrize("combination", ["allOf", "oneOf", "anyOf"])
def test_a_keyword_of_another_kind_is_refused_by_name_wherever_it_stands(
    keywords: tuple[str, Any, Any], combination: str
) -> None:
    keyword, bad, good = keywords
    for pair in ([bad, good], [good, bad]):
        parts = [{keyword: value} for value in pair]
        for schema in ({combination: parts}, {combination: parts[:1], **parts[1]}):
            with pytest.raises(BadGrammar) as caught:
                compiled(schema)
            assert f"'{keyword}'" in str(caught.value) or combination == "oneOf"


def nested(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        nested(190),
        {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}},
        {"type": "array", "items": nested(3), "minItems": 10**9},
        {"type": "object", "anyOf": [{"$ref": "#"}]},
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {
                    "type": "object",
                    "properties": {c: {"$ref": "#/$defs/a"} for c in "abcdefghijklmnop"},
                }
            },
        },
        {"description": "x" * 300_000},
    ],
    ids=["deep", "wide", "many", "loop", "bushy", "long"],
)
def test_what_grows_too_large_is_refused(schema: Any) -> None:
    """G17, V13"""
    with pytest.raises(GrammarError) as caught:
        compiled(schema)
    assert isinstance(caught.value, (TooComplex, BadGrammar))


def test_many_required_properties_are_fine() -> None:
    names = [f"p{i}" for i in range(500)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names},
        "required": names[:1],
    }
    assert accepts(schema, {names[0]: True, names[499]: False})


def test_an_unknown_format_passes_and_is_told() -> None:
    schema = Schema({"type": "string", "format": "colour"})
    schema.tree()
    assert schema.unenforced == {"format:colour"}


def test_an_unknown_keyword_passes_and_is_told_as_a_header_may_say_it() -> None:
    schema = Schema({"type": "string", "minLenght": 3, "x-order": 1, "é\r\nSet-Cookie: a": 1})
    schema.tree()
    assert schema.unenforced == {"minLenght", "%C3%A9%0D%0ASet-Cookie:%20a"}


BOUNDED = [
    ("integer", (None, False), (None, False), "7"),
    ("integer", ("-12", True), ("345", False), "1.5"),
    ("number", ("-3.25", True), ("10", True), None),
    ("number", ("0.05", False), ("2", True), "0.05"),
    ("number", (None, False), ("-0.5", False), None),
    ("number", ("0", True), (None, False), "2.5"),
    ("number", ("0", False), ("0", False), None),
]


@pytest.mark.parametrize(("kind", "low", "high", "step"), BOUNDED)
def test_numbers_within_bounds_and_steps_are_those_of_decimal_arithmetic(
    kind: str, low: tuple[str | None, bool], high: tuple[str | None, bool], step: str | None
) -> None:
    def bound(side: tuple[str | None, bool]) -> Bound | None:
        return None if side[0] is None else Bound(Decimal(side[0]), side[1])

    make = integer if kind == "integer" else number
    found = automaton(make(bound(low), bound(high), Decimal(step) if step else None))
    for hundredths in range(-1500, 1500):
        value = Decimal(hundredths) / 100
        for text in {f"{value:f}", f"{value.normalize():f}"}:
            expected = (
                (kind == "number" or "." not in text)
                and (
                    low[0] is None
                    or value > Decimal(low[0])
                    or (value == Decimal(low[0]) and not low[1])
                )
                and (
                    high[0] is None
                    or value < Decimal(high[0])
                    or (value == Decimal(high[0]) and not high[1])
                )
                and (step is None or value % Decimal(step) == 0)
            )
            if (
                step
                and "." in text
                and len(text.split(".")[1]) > max(1, len(step.partition(".")[2]))
            ):
                continue  # written with more places than its step has
            assert found.matches(text.encode()) == expected, text


def test_there_is_no_endless_whitespace() -> None:
    """G11"""
    found = automaton(any_json_object())
    assert found.matches(b'{"a": [1, 2], "b": {}}')
    assert not found.matches(b'{"a":  1}')
    assert not found.matches(b'{ "a":1}')
    assert not found.matches(b"[1]")


def test_a_pattern_between_anchors_prints_no_anchor() -> None:
    """G25"""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[\\w]+$"},
            "population": {"type": "integer"},
        },
        "required": ["name", "population"],
    }
    assert accepts(schema, {"name": "Paris", "population": 2147000})
    assert not accepts(schema, {"name": "^Paris$", "population": 1})
