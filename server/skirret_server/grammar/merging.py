"""Two schemas as one that says what both say; and whether alternatives exclude each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import lcm
from typing import Any

from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.keywords import ENFORCED, REFUSED, check_shapes
from skirret_server.grammar.values import identity, same

_TIGHTEN = {
    "minimum": max, "exclusiveMinimum": max, "minLength": max, "minItems": max,
    "minProperties": max, "maximum": min, "exclusiveMaximum": min, "maxLength": min,
    "maxItems": min, "maxProperties": min,
}  # fmt: skip


def merge(one: Any, other: Any, at: str) -> Any:
    """Raises BadGrammar where the two can't be said in one."""
    if one is False or other is False:
        return False
    if one is True or other is True:
        return other if one is True else one
    if not isinstance(one, dict) or not isinstance(other, dict):
        raise BadGrammar(f"{at}: a schema is an object or a boolean")
    check_shapes(one, at)
    check_shapes(other, at)
    _check_closed(one, other, at)
    _check_places(one, other, at)
    if "const" in one and "const" in other and not same(one["const"], other["const"]):
        return False
    merged = dict(one)
    for keyword, value in other.items():
        if keyword not in ENFORCED | REFUSED or keyword not in merged:
            merged.setdefault(keyword, value)
        elif same(merged[keyword], value):
            continue
        else:
            merged[keyword] = _both(keyword, merged[keyword], value, at)
    return merged


def _both(keyword: str, one: Any, other: Any, at: str) -> Any:
    if keyword in _TIGHTEN:
        return _TIGHTEN[keyword](one, other)
    if keyword == "type":
        return _common_types(one, other, at)
    if keyword == "required":
        return list(dict.fromkeys([*one, *other]))
    if keyword == "properties":
        return one | {
            name: merge(one[name], schema, f"{at}/properties/{name}") if name in one else schema
            for name, schema in other.items()
        }
    if keyword == "enum":
        return [value for value in one if any(same(value, each) for each in other)]
    if keyword == "pattern":
        return tuple(each for part in (one, other)
                     for each in (part if isinstance(part, tuple) else (part,)))  # fmt: skip
    if keyword in ("items", "additionalProperties"):
        return merge(one, other, f"{at}/{keyword}")
    if keyword == "allOf":
        return [*one, *other]
    if keyword == "uniqueItems":
        return one or other
    if keyword == "multipleOf" and type(one) is type(other) is int:
        return lcm(one, other)
    raise BadGrammar(f"{at}: two different '{keyword}' that must both hold are not supported")


def _common_types(one: Any, other: Any, at: str) -> list[str]:
    mine, theirs = ([x] if isinstance(x, str) else list(x) for x in (one, other))
    common = [
        kind
        for kind in dict.fromkeys([*mine, *theirs])
        if all(kind in kinds or (kind == "integer" and "number" in kinds)
               for kinds in (mine, theirs))
    ]  # fmt: skip
    if not common:
        raise BadGrammar(f"{at}: no value is of type {json.dumps(one)} and {json.dumps(other)}")
    return common


def _check_closed(one: dict[str, Any], other: dict[str, Any], at: str) -> None:
    """A schema that closes its object speaks of its own properties, not of the merged ones."""
    for closed, opened in ((one, other), (other, one)):
        extra = closed.get("additionalProperties", True)
        mine = closed.get("properties", {})
        theirs = opened.get("properties", {})
        if extra is not True and set(theirs) - set(mine):
            raise BadGrammar(
                f"{at}: 'additionalProperties' beside properties of another schema that must "
                "hold too is not supported"
            )


def _check_places(one: dict[str, Any], other: dict[str, Any], at: str) -> None:
    """`items` of a schema with places speaks of the items after them, of another of all items."""
    for placed, plain in ((one, other), (other, one)):
        has_places = "prefixItems" in placed or isinstance(placed.get("items"), list)
        if has_places and "items" in plain and not same(_places_of(placed), _places_of(plain)):
            raise BadGrammar(
                f"{at}: 'items' beside 'prefixItems' of another schema that must hold too is not "
                "supported"
            )


def _places_of(schema: dict[str, Any]) -> list[Any]:
    items = schema.get("items")
    found: list[Any] = items if isinstance(items, list) else schema.get("prefixItems", [])
    return found


def alternatives_are_apart(branches: Sequence[Any], root: Any) -> bool:
    """Whether no value can be valid under two of them, as far as can be seen at once."""
    followed = [_followed(branch, root) for branch in branches]
    return all(
        _are_apart(one, other)
        for index, one in enumerate(followed)
        for other in followed[index + 1 :]
    )


def _followed(schema: Any, root: Any, depth: int = 8) -> Any:
    while isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and depth:
        found = root
        for step in schema["$ref"].split("/")[1:]:
            found = (
                found.get(step.replace("~1", "/").replace("~0", "~"))
                if isinstance(found, dict)
                else None
            )
        schema, depth = found, depth - 1
    return schema


def _are_apart(one: Any, other: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    for branch in (one, other):
        check_shapes(branch, "an alternative")
    mine, theirs = _values(one), _values(other)
    if mine is not None and theirs is not None:
        return not mine & theirs
    kinds, others = _kinds(one), _kinds(other)
    if kinds and others and not kinds & others:
        return True
    if not kinds & others <= {"object"}:
        return False  # what isn't an object has no properties to tell it by
    shared = set(one.get("required", [])) & set(other.get("required", []))
    for name in shared:
        a = _values(one.get("properties", {}).get(name))
        b = _values(other.get("properties", {}).get(name))
        if a is not None and b is not None and not a & b:
            return True
    return False


def _values(schema: Any) -> set[str] | None:
    """The only values that are valid, as JSON; None when they are not listed."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return {identity(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return set(map(identity, schema["enum"]))
    return None


def _kinds(schema: dict[str, Any]) -> set[str]:
    """Its types; "number" for integers too, since every integer is one."""
    given = schema.get("type", [])
    kinds = [given] if isinstance(given, str) else given
    return {"number" if kind == "integer" else kind for kind in kinds}
