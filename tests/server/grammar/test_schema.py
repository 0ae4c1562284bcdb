"""JSON Schemas: what is generated is always valid, and what can't be enforced is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from skirret_server.grammar.automaton import START, Automaton, automaton
from skirret_server.grammar.errors import BadGrammar, GrammarError, TooComplex
from skirret_server.grammar.keywords import REFUSED
from skirret_server.grammar.schema import Schema, any_json_object


def compiled(schema: Any) -> Automaton:
    return automaton(Schema(schema).tree())


def generated(found: Automaton, seed: int, most: int = 400) -> str:
    """A random text that the automaton accepts; it turns to the nearest end when it grows long."""
    chance = random.Random(seed)
    data = bytearray()
    state = START
    distance = _distances(found)
    while True:
        if found.accepts[state] and (len(data) > most or chance.random() < 0.3):
            return data.decode()
        choices = [b for b in range(256) if found.table[state, found.class_of[b]]]
        if not choices:
            return data.decode()
        if len(data) > most:
            nearest = min(distance[found.table[state, found.class_of[b]]] for b in choices)
            choices = [
                b for b in choices if distance[found.table[state, found.class_of[b]]] == nearest
            ]
        byte = chance.choice(choices)
        data.append(byte)
        state = int(found.table[state, found.class_of[byte]])


def _distances(found: Automaton) -> dict[int, int]:
    before: dict[int, set[int]] = {}
    for state, row in enumerate(found.table):
        for target in set(row.tolist()):
            before.setdefault(target, set()).add(state)
    distances = {state: 0 for state, accepts in enumerate(found.accepts) if accepts}
    ring = list(distances)
    while ring:
        following = []
        for state in ring:
            for earlier in before.get(state, ()):
                if earlier not in distances:
                    distances[earlier] = distances[state] + 1
                    following.append(earlier)
        ring = following
    return distances


VALID = [
    {"type": "string"},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": "^a+$"},
    {"type": "string", "pattern": "[\"\\\\\n]x"},
    {"type": "string", "pattern": "^[^a]$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "email"},
    {"type": "integer"},
    {"type": "integer", "minimum": -12, "maximum": 345},
    {"type": "integer", "exclusiveMinimum": 0},
    {"type": "integer", "minimum": 2.5, "exclusiveMaximum": 4},
    {"type": "integer", "maximum": -7},
    {"type": "number"},
    {"type": "number", "minimum": -3, "maximum": 10},
    {"type": "number", "minimum": 0},
    {"type": "number", "maximum": -1},
    {"type": ["string", "null"]},
    {"type": "boolean"},
    {"enum": [1, "a\"b", "c\\d", "e\nf", None, True, {"x": [1, 2]}, 1.5]},
    {"const": {"a": [1, {"b": None}]}},
    {"enum": [1, "a"], "type": "string"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False, "minItems": 1},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 3},
    {"type": "array", "maxItems": 0},
    {"type": "array"},
    {"type": "object"},
    {"type": "object", "additionalProperties": True},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"const": 1}},
        "required": ["b"],
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}},
    {
        "type": "object",
        "properties": {"ab": {"type": "integer"}, "a": {"const": 2}, "\"q\n": {"const": 3}},
        "additionalProperties": {"type": "string"},
    },
    {"type": "object", "required": ["only", "these"]},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    {
        "oneOf": [
            {"properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k"]},
            {"properties": {"k": {"const": "b"}, "y": {"type": "null"}}, "required": ["k"]},
        ],
        "type": "object",
    },
    {
        "allOf": [
            {"properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"type": "number", "maximum": 5}, "b": {"const": 1}}},
        ],
        "type": "object",
    },
    {
        "type": "array",
        "items": {"$ref": "#/$defs/e"},
        "minItems": 2,
        "maxItems": 2,
        "$defs": {"e": {"type": "object", "properties": {"v": {"type": "integer"}},
                        "required": ["v"]}},
    },
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value", "next"],
            }
        },
    },
    {"$ref": "#/$defs/s", "maxLength": 3, "$defs": {"s": {"type": "string", "minLength": 2}}},
    {"minimum": 1, "maximum": 2},
    {},
    True,
]  # fmt: skip


@pytest.mark.parametrize("schema", VALID, ids=lambda schema: json.dumps(schema)[:70])
def test_everything_that_is_generated_is_valid(schema: Any) -> None:
    found = compiled(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for seed in range(40):
        text = generated(found, seed)
        value = json.loads(text)
        assert validator.is_valid(value), text


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
        ({"type": "string", "pattern": "^a+$", "maxLength": 2, "minLength": 2}, "pattern"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
        ({"type": "number", "minimum": 0.5}, "minimum"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no value is valid"),
        ({"enum": []}, "enum"),
        ({"enum": [1], "minimum": 3}, "minimum"),
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


scalars = st.sampled_from([
    {"type": "string"}, {"type": "integer", "minimum": 3}, {"type": "null"}, {"const": [1, "x"]},
    {"type": "string", "maxLength": 2}, {"type": ["boolean", "number"]}, {"enum": ["a", 1, None]},
    {"type": "number", "maximum": 9}, {"type": "string", "pattern": "^[a-c]{1,3}$"},
])  # fmt: skip
schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": st.integers(0, 2), "maxItems": st.integers(0, 3)},
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from(["a", "b", 'q"']), inner, max_size=3),
            },
            optional={
                "required": st.lists(st.sampled_from(["a", "b", "z"]), max_size=2),
                "additionalProperties": st.booleans() | inner,
            },
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=2, max_size=2)}),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=schemas, seed=st.integers(0, 10**6))
def test_random_schemas_give_valid_values_or_are_refused(schema: Any, seed: int) -> None:
    try:
        found = compiled(schema)
    except GrammarError:
        assume(False)
    text = generated(found, seed, most=80)
    assert Draft202012Validator(schema).is_valid(json.loads(text)), text
