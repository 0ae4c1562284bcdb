"""JSON Schema into the tree. Every keyword that restricts the values is enforced, or refused.

The texts are a subset of those the schema allows: properties in the schema's order, none that it
doesn't declare unless it asks for them, one space at most after a comma or colon, and recursion to
a fixed depth. What is generated is always valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

from skirret_server.grammar import json_text
from skirret_server.grammar.automaton import Budget, automaton, both
from skirret_server.grammar.digits import Bound, integer, number
from skirret_server.grammar.distinct import Texts, distinct, texts
from skirret_server.grammar.errors import BadGrammar, TooComplex
from skirret_server.grammar.keywords import ENFORCED, KEYWORDS, RECURSION, REFUSED, check_shapes
from skirret_server.grammar.merging import alternatives_are_apart, merge
from skirret_server.grammar.regex import inside, whole
from skirret_server.grammar.syntax import (
    NEVER,
    Node,
    alt,
    literal,
    optional,
    repeat,
    seq,
)
from skirret_server.grammar.values import same

MAX_BYTES = 256 * 1024
MAX_PROPERTIES = 5000
_MOST_NODES = 20_000
_MOST_LEVELS = 64

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")

_OF_OBJECTS = {"properties", "required", "additionalProperties", "minProperties", "maxProperties"}
_OF_ARRAYS = {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}
_OF_STRINGS = {"minLength", "maxLength", "pattern", "format"}
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_MOST_TOLD = 20  # keywords and formats that were let pass

_HEX, _TWO = "[0-9a-fA-F]", "[0-5][0-9]"
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"  # there was none of 0000
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    f"(?:(?:[01][0-9]|2[0-3]):{_TWO}:{_TWO}(?:\\.[0-9]{{1,6}})?(?:Z|[+-](?:0[0-9]|1[0-4]):{_TWO}))"
)
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "email": r"[A-Za-z0-9_+-]{1,32}(?:\.[A-Za-z0-9_+-]{1,16}){0,2}"
    r"@[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?(?:\.[A-Za-z]{2,12}){1,2}",
    "ipv4": rf"(?:{_OCTET}\.){{3}}{_OCTET}",
}


def any_json_object() -> Node:
    return json_text.any_object()


class Schema:
    """One schema on its way into the tree. `unenforced` is what it says and we let pass."""

    def __init__(self, root: Any, budget: Budget | None = None) -> None:
        """Raises BadGrammar or TooComplex when it is no schema, or too large for one."""
        if not isinstance(root, (dict, bool)):
            raise BadGrammar("a schema is an object or a boolean")
        if len(json.dumps(root)) > MAX_BYTES:
            raise TooComplex(f"the schema has more than {MAX_BYTES} bytes")
        self.unenforced: set[str] = set()
        self._root = root
        self._budget = budget or Budget()
        self._nodes = 0
        self._depth = 0
        self._within: dict[str, int] = {}  # references being followed, and how often

    def tree(self) -> Node:
        """Raises BadGrammar or TooComplex."""
        found = self._any(self._root, "#")
        if found == NEVER:
            raise BadGrammar("no value is valid under this schema")
        return found

    def _any(self, schema: Any, at: str) -> Node:
        self._count_node()
        self._depth += 1
        if self._depth > _MOST_LEVELS:
            raise TooComplex(f"{at[:200]} is nested more than {_MOST_LEVELS} levels deep")
        try:
            return self._one(schema, at)
        finally:
            self._depth -= 1

    def _count_node(self) -> None:
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise TooComplex("the schema grows too large when its references are followed")

    def _one(self, schema: Any, at: str) -> Node:
        if schema is True:
            return json_text.value()
        if schema is False:
            return NEVER
        if not isinstance(schema, dict):
            raise BadGrammar(f"{at} must be an object or a boolean")
        self._check_keywords(schema, at)
        if "$ref" in schema:
            return self._reference(schema, at)
        if "allOf" in schema:
            return self._any(self._all_of(schema, at), at)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._branches(schema, keyword, at)
        if "enum" in schema or "const" in schema:
            return self._constants(schema, at)
        return alt(self._typed(kind, schema, at) for kind in self._types(schema, at))

    def _check_keywords(self, schema: Mapping[str, Any], at: str) -> None:
        check_shapes(schema, at)
        for keyword in schema:
            if keyword in REFUSED:
                raise BadGrammar(f"{at}: the keyword '{keyword}' is not supported")
            if keyword not in KEYWORDS and not keyword.startswith("x-"):
                self._let_pass(keyword)
        if "$id" in schema and at != "#" and not str(schema["$id"]).startswith("#"):
            raise BadGrammar(f"{at}: '$id' is only supported at the root")

    def _let_pass(self, what: str) -> None:
        """It is told in a header, so it is written as one may be."""
        if len(self.unenforced) < _MOST_TOLD:
            self.unenforced.add(quote(what[:60], safe=":"))

    # references

    def _reference(self, schema: Mapping[str, Any], at: str) -> Node:
        reference = schema["$ref"]
        target = self._resolved(reference, at)
        if self._within.get(reference, 0) >= RECURSION:
            return NEVER
        self._within[reference] = self._within.get(reference, 0) + 1
        try:
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            if not siblings.keys() & ENFORCED:
                return self._any(target, reference)
            return self._any(merge(target, siblings, at), at)
        finally:
            self._within[reference] -= 1

    def _resolved(self, reference: Any, at: str) -> Any:
        if not isinstance(reference, str) or (reference + "/")[:2] != "#/":
            raise BadGrammar(f"{at}: '$ref' must point into this schema: '#/…'")
        found = self._root
        for step in reference.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise BadGrammar(f"{at}: '{reference}' is not there")
        return found

    # combinations

    def _all_of(self, schema: Mapping[str, Any], at: str) -> Any:
        parts = schema["allOf"]
        merged: Any = {key: value for key, value in schema.items() if key != "allOf"}
        for part in parts:
            followed = part
            while isinstance(followed, dict) and "$ref" in followed:
                siblings = {key: value for key, value in followed.items() if key != "$ref"}
                target = self._resolved(followed["$ref"], at)
                if self._within.get(followed["$ref"], 0) > RECURSION:
                    return False
                self._count_node()
                followed = merge(target, siblings, at) if siblings else target
            merged = merge(merged, followed, at)
        return merged

    def _branches(self, schema: Mapping[str, Any], keyword: str, at: str) -> Node:
        branches = schema[keyword]
        rest = {key: value for key, value in schema.items() if key != keyword}
        if keyword == "oneOf" and not alternatives_are_apart(branches, self._root):
            raise BadGrammar(
                f"{at}: 'oneOf' is supported where its alternatives differ in type, or in a "
                "constant that each requires; use 'anyOf' where they may overlap"
            )
        if not rest.keys() & ENFORCED:
            return alt(
                self._any(branch, f"{at}/{keyword}/{i}") for i, branch in enumerate(branches)
            )
        return alt(
            self._any(merge(self._followed(branch, at), rest, at), f"{at}/{keyword}/{i}")
            for i, branch in enumerate(branches)
        )

    def _followed(self, schema: Any, at: str) -> Any:
        """A branch that is nothing but a reference, as what it points to."""
        if isinstance(schema, dict) and set(schema) == {"$ref"}:
            return self._resolved(schema["$ref"], at)
        return schema

    def _constants(self, schema: Mapping[str, Any], at: str) -> Node:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if "const" in schema and "enum" in schema:
            listed = schema["enum"]
            values = [value for value in values if any(same(value, one) for one in listed)]
        kinds = self._types(schema, at) if "type" in schema else TYPES
        found = alt(json_text.constant(value) for value in values if _is_of(value, kinds))
        rest = {name: one for name, one in schema.items() if name not in ("enum", "const")}
        if not (rest.keys() & ENFORCED) - {"type"}:
            return found
        return both(found, self._any(rest, at), self._budget)

    # types

    def _types(self, schema: Mapping[str, Any], at: str) -> list[str]:
        given = schema.get("type")
        if given is None:
            return self._implied(schema)
        kinds = [given] if isinstance(given, str) else given
        for kind in kinds:
            if kind not in TYPES:
                raise BadGrammar(f"{at}: {json.dumps(kind)} is not a type")
        return kinds

    def _implied(self, schema: Mapping[str, Any]) -> list[str]:
        """Values of other types would be valid too; these are what the keywords speak of."""
        for keywords, kind in (
            (_OF_OBJECTS, "object"),
            (_OF_ARRAYS, "array"),
            (_OF_STRINGS, "string"),
            (_OF_NUMBERS, "number"),
        ):
            if schema.keys() & keywords:
                return [kind]
        return list(TYPES)

    def _typed(self, kind: str, schema: Mapping[str, Any], at: str) -> Node:
        if kind == "null":
            return json_text.NULL
        if kind == "boolean":
            return json_text.TRUE_OR_FALSE
        if kind == "string":
            return self._string(schema, at)
        if kind in ("integer", "number"):
            return self._number(kind, schema, at)
        return self._array(schema, at) if kind == "array" else self._object(schema, at)

    def _string(self, schema: Mapping[str, Any], at: str) -> Node:
        least = _count(schema, "minLength")
        most = _count(schema, "maxLength")
        patterns, form = schema.get("pattern", ()), schema.get("format")
        if isinstance(patterns, str):  # merged schemas have several
            patterns = (patterns,)
        if form is not None and form not in FORMATS:
            self._let_pass(f"format:{form}")
            form = None
        if most is not None and least is not None and least > most:
            return NEVER
        found = [self._pattern(pattern, at) for pattern in patterns]
        if form is not None:
            found.append(json_text.quoted(whole(FORMATS[form])))
        if not found or least or most is not None:
            found.append(json_text.string(least or 0, most))
        return self._all(found)

    def _pattern(self, pattern: str, at: str) -> Node:
        try:
            return json_text.quoted(json_text.escaped(inside(pattern)))
        except BadGrammar as error:
            raise BadGrammar(f"{at}: bad 'pattern': {error}") from error

    def _all(self, nodes: Sequence[Node]) -> Node:
        found, *others = nodes
        for other in others:
            found = both(found, other, self._budget)
        return found

    def _number(self, kind: str, schema: Mapping[str, Any], at: str) -> Node:
        step = _decimal(schema, "multipleOf", at)
        if step is not None and step <= 0:
            raise BadGrammar(f"{at}: 'multipleOf' must be more than zero")
        low, high = _bounds(schema, at)
        try:
            return (integer if kind == "integer" else number)(low, high, step)
        except BadGrammar as error:
            raise BadGrammar(f"{at}: {error}") from error

    def _array(self, schema: Mapping[str, Any], at: str) -> Node:
        least = _count(schema, "minItems") or 0
        most = _count(schema, "maxItems")
        places, others, where = _places(schema, at)
        first = [self._any(one, f"{at}/{where}/{i}") for i, one in enumerate(places)]
        # Items that can't be there are not asked after: their schema may be one we refuse.
        is_full = most is not None and most <= len(first)
        rest = NEVER if is_full else self._any(others, f"{at}/items")
        if most is not None and least > most:
            return NEVER
        if schema.get("uniqueItems") and most not in (0, 1):
            inner = self._distinct(first, rest, least, most, at)
        elif first:
            inner = _prefixed(first, rest, least, most)
        else:
            return json_text.array(rest, least, most)
        return seq(literal("["), inner, literal("]"))

    def _distinct(
        self, first: Sequence[Node], rest: Node, least: int, most: int | None, at: str
    ) -> Node:
        def few(item: Node) -> Texts:
            found = {} if item == NEVER else texts(automaton(item, self._budget))
            if found is None:
                raise BadGrammar("'uniqueItems' is only supported over few values: constants, "
                                 "enums, booleans, null")  # fmt: skip
            return found

        try:
            return distinct([few(item) for item in first], few(rest), least, most)
        except BadGrammar as error:
            raise BadGrammar(f"{at}: {error}") from error

    def _object(self, schema: Mapping[str, Any], at: str) -> Node:
        declared = schema.get("properties", {})
        required = list(dict.fromkeys(schema.get("required", ())))
        # A schema that names no property at all means objects of any kind.
        is_any = "properties" not in schema and not required
        extra = schema.get("additionalProperties", is_any)
        least = _count(schema, "minProperties") or 0
        most = _count(schema, "maxProperties")
        if len(declared) > MAX_PROPERTIES:
            raise TooComplex(f"{at} has more than {MAX_PROPERTIES} properties")
        members = []
        for name in [*declared, *(name for name in required if name not in declared)]:
            if name in declared:
                value = self._any(declared[name], f"{at}/properties/{name}")
            elif schema.get("additionalProperties", True) is False:
                value = NEVER
            else:
                value = self._any(schema.get("additionalProperties", True), f"{at}/required")
            members.append((seq(json_text.key(name), value), name in required))
        others: Node = NEVER
        if extra is not False:
            value = self._any(extra, f"{at}/additionalProperties")
            keys = json_text.any_key_but({*declared, *required})
            others = seq(keys, json_text.COLON, value)
        self._check_property_counts(members, least, most, at)
        # Keys of other members may repeat: there are never more of them than are written.
        spare = None if most is None else most - len(members)
        more = others if spare is None or spare > 0 else NEVER
        if least == 1 and not members:
            return seq(literal("{"), _others(more, spare), literal("}"))
        return seq(literal("{"), _members(members, more, spare), literal("}"))

    def _check_property_counts(
        self,
        members: list[tuple[Node, bool]],
        least: int,
        most: int | None,
        at: str,
    ) -> None:
        sure = sum(is_required for _, is_required in members)
        if least > sure and not (least == 1 and not members):
            raise BadGrammar(f"{at}: 'minProperties' above the number of required properties "
                             "is not supported")  # fmt: skip
        if most is not None and most < len(members):
            raise BadGrammar(f"{at}: 'maxProperties' below the number of declared properties is "
                             "not supported")  # fmt: skip


def _members(members: list[tuple[Node, bool]], others: Node, spare: int | None) -> Node:
    """Members in order, commas between those that are there.

    Around the first required member every comma has its place. Without one, whichever optional
    member comes first decides, so the tree grows with the square of their number.
    """
    more = repeat(seq(json_text.COMMA, others), 0, spare)
    if any(member == NEVER for member, is_required in members if is_required):
        return NEVER
    possible = [one for one in members if one[0] != NEVER]
    anchor = next((i for i, (_, is_required) in enumerate(possible) if is_required), None)
    if anchor is not None:
        before = [optional(seq(member, json_text.COMMA)) for member, _ in possible[:anchor]]
        return seq(*before, possible[anchor][0], _tail(possible[anchor + 1 :]), more)
    if len(possible) > 300:
        raise TooComplex("more than 300 optional properties beside no required one")
    firsts = [
        seq(member, _tail(possible[index + 1 :]), more)
        for index, (member, _) in enumerate(possible)
    ]
    return alt([literal(""), *firsts, _others(others, spare)])


def _others(others: Node, spare: int | None) -> Node:
    """At least one of them."""
    return NEVER if others == NEVER else repeat(others, 1, spare, json_text.COMMA)


def _tail(members: list[tuple[Node, bool]]) -> Node:
    parts = [
        seq(json_text.COMMA, member) if is_required else optional(seq(json_text.COMMA, member))
        for member, is_required in members
    ]
    return seq(*parts)


def _prefixed(first: list[Node], rest: Node, least: int, most: int | None) -> Node:
    """Items with places of their own, then any number of the rest."""
    limit = len(first) if most is None else min(len(first), most)
    left = None if most is None else max(0, most - len(first))
    tail: Node = repeat(seq(json_text.COMMA, rest), max(0, least - len(first)), left)
    for index in range(limit - 1, -1, -1):
        item = first[index] if index == 0 else seq(json_text.COMMA, first[index])
        is_optional = index >= least
        here = seq(item, tail)
        tail = optional(here) if is_optional else here
    return tail


def _places(schema: Mapping[str, Any], at: str) -> tuple[list[Any], Any, str]:
    """Schemas of the first items, of all others, and the keyword that has the first."""
    items, prefix = schema.get("items", True), schema.get("prefixItems", [])
    if not isinstance(items, list):
        return prefix, items, "prefixItems"
    if prefix:
        raise BadGrammar(f"{at}: 'prefixItems' beside a list of 'items' is not supported")
    return items, schema.get("additionalItems", True), "items"


def _bounds(schema: Mapping[str, Any], at: str) -> tuple[Bound | None, Bound | None]:
    """The tightest of each side."""
    found = {
        keyword: Bound(value, keyword.startswith("exclusive"))
        for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        if (value := _decimal(schema, keyword, at)) is not None
    }
    lows = [found[keyword] for keyword in ("minimum", "exclusiveMinimum") if keyword in found]
    highs = [found[keyword] for keyword in ("maximum", "exclusiveMaximum") if keyword in found]
    return (
        max(lows, key=lambda bound: (bound.value, bound.is_open), default=None),
        min(highs, key=lambda bound: (bound.value, not bound.is_open), default=None),
    )


def _decimal(schema: Mapping[str, Any], keyword: str, at: str) -> Decimal | None:
    value = schema.get(keyword)
    if value is None:
        return None
    found = Decimal(str(value))
    if not found.is_finite():
        raise BadGrammar(f"{at}: '{keyword}' is too large")
    return found


def _count(schema: Mapping[str, Any], keyword: str) -> int | None:
    value = schema.get(keyword)
    return None if value is None else int(value)


def _is_of(value: Any, kinds: Sequence[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, (int, float)):
        is_whole = isinstance(value, int) or value.is_integer()
        return "number" in kinds or (is_whole and "integer" in kinds)
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names[type(value)] in kinds
