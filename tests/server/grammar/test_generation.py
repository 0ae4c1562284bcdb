"""Random schemas, random logits under the mask: everything that comes out is valid."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from skirret_server.grammar import json_text
from skirret_server.grammar.automaton import Automaton, automaton
from skirret_server.grammar.errors import GrammarError
from skirret_server.grammar.keywords import ENFORCED
from skirret_server.grammar.likely import likely_bytes
from skirret_server.grammar.masks import CompiledGrammar, MaskCache, Vocabulary
from skirret_server.grammar.schema import Schema

WORDS = ['"', '":', '": ', ', "', '"}', "{}", "[]", '{"', "},", "true", "false", "null", "ab", "ba",
         "00", "12", "99", "0.", "-1", "e1", "é", "😀", "\\u", "\\n", "\\\\", '"a"', '"b', "20",
         "-0", ".5", ": ", "  ", "aa", "}}", "]]", '"]', "a\"", "d8", "1}"]  # fmt: skip
TOKENS = [
    *(bytes([byte]) for byte in range(256)),
    *map(str.encode, WORDS),
    b"\xf0\x9f",
    b"\x98\x80",
]
END = len(TOKENS)
LONG = 60  # tokens, after which the shortest way to an end is taken
VOCABULARY = Vocabulary(TOKENS, [], [END], END + 1)


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


@pytest.fixture(autouse=True)
def shallow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Values that no schema describes have one level here: else compiling them is all we'd do."""
    whole = json_text.value
    monkeypatch.setattr(json_text, "value", lambda depth=1: whole(depth))
    with localcontext(prec=200):  # jsonschema asks for the remainder of 1e99 by 0.01
        yield


@pytest.mark.parametrize("schema", VALID, ids=lambda schema: json.dumps(schema)[:70])
def test_whatever_is_drawn_for_an_ordinary_schema_is_valid(schema: Any) -> None:
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for text in texts(automaton(Schema(schema).tree()), random.Random(3), 10):
        assert validator.is_valid(json.loads(text)), text


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.full)])
def test_whatever_is_drawn_under_the_mask_is_valid(count: int) -> None:
    enforced: Counter[str] = Counter()
    refused = drawn = 0
    for seed in range(count):
        chance = random.Random(seed)
        is_draft_7 = chance.random() < 0.2
        schema = Schemas(chance, is_draft_7=is_draft_7).root()
        try:
            found = automaton(Schema(schema).tree())
        except GrammarError:
            refused += 1
            continue
        kind = Draft7Validator if is_draft_7 else Draft202012Validator
        validator = kind(decimal(json.dumps(schema)), format_checker=kind.FORMAT_CHECKER)
        enforced.update(keywords_of(schema) & ENFORCED)
        for text in texts(found, chance, 3):
            drawn += 1
            assert validator.is_valid(decimal(text)), (seed, schema, text)
    print(f"{count} schemas, {refused} refused, {drawn} answers, all valid; by keyword:")
    print(dict(sorted(enforced.items())))
    assert enforced.keys() == ENFORCED
    assert refused < count / 3


def decimal(text: str) -> Any:
    """Exact, as the grammar is: in binary fractions 0.07 is no multiple of 0.01."""
    return json.loads(text, parse_float=Decimal)


def texts(found: Automaton, chance: random.Random, count: int) -> list[str]:
    grammar = CompiledGrammar(found, likely_bytes(found), MaskCache(VOCABULARY))
    distance = distances(found)
    logits = np.random.default_rng(chance.getrandbits(32))
    return [text(grammar, distance, logits) for _ in range(count)]


def text(
    compiled: CompiledGrammar, distance: np.ndarray[Any, Any], logits: np.random.Generator
) -> str:
    """The likeliest token of random logits at each step, under the mask, to the end."""
    grammar, data = compiled.start(), bytearray()
    for step in range(100_000):
        allowed = grammar.allowed()
        ids = np.setdiff1d(np.arange(END + 1), allowed.ids) if allowed.are_excluded else allowed.ids
        assert ids.size, "the mask allows nothing"
        if step > LONG:
            states = [_after(grammar, token, distance) for token in ids.tolist()]
            ids = ids[np.array(states) == min(states)]
        token = int(ids[logits.standard_normal(ids.size).argmax()])
        if token == END:
            return data.decode()
        data += TOKENS[token]
        grammar.accept(token)
    raise AssertionError("it doesn't end")


def _after(grammar: Any, token: int, distance: np.ndarray[Any, Any]) -> float:
    if token == END:
        return -1
    ahead = grammar.copy()
    ahead.accept(token)
    return float(distance[ahead._state])


def distances(found: Automaton) -> np.ndarray[Any, Any]:
    """Of each state: bytes to the nearest end."""
    distance = np.where(found.accepts, 0.0, np.inf)
    while True:
        nearer = np.minimum(distance, 1 + distance[found.table].min(1))
        nearer[0] = np.inf
        if (nearer == distance).all():
            return distance
        distance = nearer


def keywords_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keywords_of, value.values()))
    return set().union(*map(keywords_of, value)) if isinstance(value, list) else set()


class Schemas:
    """Random schemas of every keyword that is enforced, some of them contradictory."""

    def __init__(self, chance: random.Random, *, is_draft_7: bool) -> None:
        self.chance = chance
        self.is_draft_7 = is_draft_7
        self.names = ["a", "b", 'q"', "ab", "é"]

    def root(self) -> Any:
        schema = self.schema(3)
        if isinstance(schema, dict):
            schema["$defs"] = {"d": self.schema(0), "node": self.node()}
        return schema

    def node(self) -> Any:
        """One that may hold itself."""
        inner = self.one_of(
            {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
        )
        return {
            "type": "object",
            "properties": {"v": self.scalar(), "next": inner},
            "required": ["v"],
        }

    def schema(self, depth: int) -> Any:
        makers: list[Callable[[], Any]] = [self.scalar, self.scalar, self.constants]
        if depth:
            makers += [
                lambda: self.object(depth),
                lambda: self.array(depth),
                lambda: self.combination(depth),
            ] * 2
            makers += [lambda: {"$ref": self.one_of("#/$defs/d", "#/$defs/node")}]
        if self.chance.random() < 0.02:
            return self.one_of(True, {})
        return self.chance.choice(makers)()

    def scalar(self) -> Any:
        return self.one_of(self.string, self.number, self.integer, self.simple)()

    def simple(self) -> Any:
        return self.one_of(
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["null", "boolean"]},
            {"type": ["string", "null"], "maxLength": 3},
            {"type": "number"},
        )

    def string(self) -> Any:
        schema: dict[str, Any] = {"type": "string"}
        self.maybe(schema, "minLength", lambda: self.chance.randrange(4))
        self.maybe(schema, "maxLength", lambda: self.chance.randrange(2, 9))
        self.maybe(
            schema, "pattern", lambda: self.one_of("^[a-c]{1,3}$", "b", "^a|é$", '["\\\\\n]')
        )
        self.maybe(
            schema,
            "format",
            lambda: self.one_of("date", "time", "date-time", "uuid", "email", "ipv4"),
            0.15,
        )
        return self.untyped(schema)

    def integer(self) -> Any:
        schema: dict[str, Any] = {"type": "integer"}
        self.maybe(schema, "minimum", lambda: self.one_of(0, -5, 12, 3.5, -100))
        self.maybe(schema, "maximum", lambda: self.one_of(7, 40, 1000, 99.5))
        self.maybe(schema, "multipleOf", lambda: self.one_of(1, 2, 3, 7, 10, 2.5, 60), 0.3)
        return schema

    def number(self) -> Any:
        schema: dict[str, Any] = {"type": "number"}
        self.maybe(
            schema,
            self.one_of("minimum", "exclusiveMinimum"),
            lambda: self.one_of(0, -1, 0.5, -2.25, 1e-3),
        )
        self.maybe(
            schema,
            self.one_of("maximum", "exclusiveMaximum"),
            lambda: self.one_of(1, 10, 3.14, 1e6, 0.75),
        )
        self.maybe(schema, "multipleOf", lambda: self.one_of(0.01, 0.5, 2, 1.5, 0.1), 0.3)
        return self.untyped(schema)

    def constants(self) -> Any:
        values = [1, 1.0, 0, "a", 'q"\\', "é\n", None, True, False, [1, "x"], {"a": 1.5}, -2.5, ""]
        if self.chance.random() < 0.4:
            return {"const": self.chance.choice(values)}
        schema: dict[str, Any] = {"enum": self.chance.sample(values, self.chance.randrange(1, 5))}
        self.maybe(schema, "type", lambda: self.one_of("string", ["number", "null"]), 0.2)
        self.maybe(schema, "minLength", lambda: 1, 0.1)
        return schema

    def object(self, depth: int) -> Any:
        names = self.chance.sample(self.names, self.chance.randrange(4))
        schema: dict[str, Any] = {"type": "object"}
        self.maybe(
            schema, "properties", lambda: {name: self.schema(depth - 1) for name in names}, 0.9
        )
        self.maybe(
            schema,
            "required",
            lambda: self.chance.sample([*names, "z"], self.chance.randrange(len(names) + 1)),
        )
        self.maybe(
            schema,
            "additionalProperties",
            lambda: self.one_of(False, True, {"type": "integer"}),
            0.4,
        )
        self.maybe(schema, "minProperties", lambda: self.chance.randrange(3), 0.1)
        self.maybe(schema, "maxProperties", lambda: self.chance.randrange(2, 5), 0.1)
        return self.untyped(schema)

    def array(self, depth: int) -> Any:
        schema: dict[str, Any] = {"type": "array"}
        if self.chance.random() < 0.3:
            places = [self.schema(depth - 1) for _ in range(self.chance.randrange(1, 3))]
            schema["items" if self.is_draft_7 else "prefixItems"] = places
            self.maybe(
                schema,
                "additionalItems" if self.is_draft_7 else "items",
                lambda: self.one_of(False, self.scalar()),
            )
        else:
            self.maybe(schema, "items", lambda: self.schema(depth - 1), 0.9)
        self.maybe(schema, "minItems", lambda: self.chance.randrange(3))
        self.maybe(schema, "maxItems", lambda: self.chance.randrange(1, 4))
        if self.chance.random() < 0.25:
            schema["uniqueItems"] = True
            schema["items"] = self.one_of(
                self.constants(),
                {"type": "boolean"},
                {"type": "integer", "minimum": 1, "maximum": 4},
            )
        return self.untyped(schema)

    def combination(self, depth: int) -> Any:
        keyword = self.one_of("anyOf", "anyOf", "allOf", "oneOf")
        if keyword == "oneOf":
            return {
                "oneOf": self.one_of(
                    [{"type": "integer"}, self.string() | {"type": "string"}, {"type": "null"}],
                    [
                        {
                            "type": "object",
                            "properties": {"k": {"const": k}, "x": self.scalar()},
                            "required": ["k"],
                        }
                        for k in ("a", 1, True)
                    ],
                )
            }
        if keyword == "allOf" and self.chance.random() < 0.7:
            maker = self.one_of(self.string, self.number, self.integer, lambda: self.object(1))
            return {"allOf": [maker(), maker()]}
        schema = {keyword: [self.schema(depth - 1) for _ in range(self.chance.randrange(1, 4))]}
        return schema | (self.simple() if self.chance.random() < 0.1 else {})

    def untyped(self, schema: dict[str, Any]) -> dict[str, Any]:
        if len(schema) > 1 and self.chance.random() < 0.1:
            del schema["type"]
        return schema

    def maybe(
        self, schema: dict[str, Any], keyword: str, value: Callable[[], Any], share: float = 0.5
    ) -> None:
        if self.chance.random() < share:
            schema[keyword] = value()

    def one_of(self, *options: Any) -> Any:
        return self.chance.choice(options)
