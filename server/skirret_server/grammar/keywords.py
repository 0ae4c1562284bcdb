"""What becomes of every keyword of JSON Schema's drafts 7, 2019-09 and 2020-12.

One table: the compiler goes by it, and the documents are written from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from skirret_server.grammar.digits import MOST_DIGITS
from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.json_text import ANY_DEPTH

Verdict = Literal["enforced", "annotation", "refused"]


@dataclass(frozen=True, slots=True)
class Keyword:
    verdict: Verdict
    note: str = ""


RECURSION = 3  # how often a reference may stand inside itself
UNIQUE_STATES = 20_000  # of the automaton of arrays whose items differ


def _enforced(note: str = "") -> Keyword:
    return Keyword("enforced", note)


def _annotation(note: str = "") -> Keyword:
    return Keyword("annotation", note)


def _refused(note: str = "") -> Keyword:
    return Keyword("refused", note)


_DIGITS = f"{MOST_DIGITS} digits at most, decimal, without an exponent"

KEYWORDS: dict[str, Keyword] = {
    "type": _enforced("a name or a list; where it is missing, the type that the keywords speak of"),
    "enum": _enforced("any values"),
    "const": _enforced("any value"),
    "$ref": _enforced(f"into the same schema (`#/…`), {RECURSION} times inside itself; "
                      "what stands beside it holds too"),
    "anyOf": _enforced(),
    "oneOf": _enforced("where alternatives differ in type, or in a constant that each requires"),
    "allOf": _enforced("merged; what can't be said in one schema is refused by name"),
    "properties": _enforced("in the schema's order"),
    "required": _enforced(),
    "additionalProperties": _enforced("where it is missing, none are written beside properties "
                                      "that are declared or required"),
    "minProperties": _enforced("up to the number of required properties, or 1"),
    "maxProperties": _enforced("not below the number of declared properties"),
    "items": _enforced("a schema, or draft 7's list"),
    "prefixItems": _enforced(),
    "additionalItems": _enforced("beside a list of `items`, as in draft 7"),
    "minItems": _enforced(),
    "maxItems": _enforced(),
    "uniqueItems": _enforced("over items that are constants, enums, booleans or null, about "
                             "8 of them; refused over others"),
    "minLength": _enforced("in characters"),
    "maxLength": _enforced("in characters"),
    "pattern": _enforced("searched for, as JSON Schema means it; without look-around, "
                         "back-references and word boundaries"),
    "format": _enforced("date, time, date-time, uuid, email, ipv4; others are let pass and named "
                        "in `x-unenforced`"),
    "minimum": _enforced(_DIGITS),
    "maximum": _enforced(_DIGITS),
    "exclusiveMinimum": _enforced(_DIGITS),
    "exclusiveMaximum": _enforced(_DIGITS),
    "multipleOf": _enforced(f"in decimal arithmetic, with the bounds; {_DIGITS}; refused above "
                            "some thousands of remainders"),
    **dict.fromkeys(
        ("title", "description", "default", "examples", "example", "deprecated", "readOnly",
         "writeOnly", "$comment", "$schema", "$vocabulary", "$defs", "definitions", "$anchor",
         "$dynamicAnchor", "$recursiveAnchor", "discriminator", "xml", "externalDocs", "nullable"),
        _annotation(),
    ),
    "$id": _annotation("at the root; below it, it would change where references point"),
    "not": _refused(),
    "if": _refused(),
    "then": _refused(),
    "else": _refused(),
    "dependentRequired": _refused(),
    "dependentSchemas": _refused(),
    "dependencies": _refused("of draft 7"),
    "patternProperties": _refused(),
    "propertyNames": _refused(),
    "contains": _refused(),
    "minContains": _refused(),
    "maxContains": _refused(),
    "unevaluatedProperties": _refused(),
    "unevaluatedItems": _refused(),
    "$dynamicRef": _refused(),
    "$recursiveRef": _refused("of draft 2019-09"),
    "contentEncoding": _refused(),
    "contentMediaType": _refused(),
    "contentSchema": _refused(),
    **dict.fromkeys(("divisibleBy", "disallow", "extends"), _refused("of drafts before 4")),
}  # fmt: skip


def _of(verdict: Verdict) -> frozenset[str]:
    return frozenset(name for name, one in KEYWORDS.items() if one.verdict == verdict)


ENFORCED, ANNOTATIONS, REFUSED = _of("enforced"), _of("annotation"), _of("refused")


_LISTS = frozenset({"enum", "allOf", "anyOf", "oneOf"})
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties",
                     "maxProperties"})  # fmt: skip
_TEXTS = frozenset({"pattern", "format", "$ref"})


def check_shapes(schema: Mapping[str, Any], at: str) -> None:
    """That the values of keywords are of their kind. Raises BadGrammar."""
    for keyword, value in schema.items():
        wanted = _wanted(keyword, value)
        if wanted:
            raise BadGrammar(f"{at}: '{keyword}' must be {wanted}")


def _wanted(keyword: str, value: Any) -> str | None:
    """What the value should be, where it is something else."""
    if keyword in _LISTS:
        return None if isinstance(value, list) and value else "a list that is not empty"
    if keyword == "prefixItems":
        return None if isinstance(value, list) else "a list"
    if keyword in _NUMBERS:
        return None if _is_number(value) else "a number"
    if keyword in _COUNTS:
        is_count = _is_number(value) and value >= 0 and value == value // 1
        return None if is_count else "a whole number, zero or more"
    if keyword in _TEXTS:
        # Merged schemas have several patterns.
        return None if isinstance(value, (str, tuple)) else "a string"
    if keyword == "uniqueItems":
        return None if isinstance(value, bool) else "true or false"
    if keyword == "properties":
        return None if isinstance(value, dict) else "an object"
    if keyword == "required":
        return None if _are_texts(value) else "a list of names"
    if keyword == "type":
        is_type = isinstance(value, str) or (_are_texts(value) and value)
        return None if is_type else "a type or a list of types"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def table() -> str:
    """For the documents."""
    said = {"enforced": "enforced", "annotation": "says nothing of the text", "refused": "**400**"}
    rows = [
        f"| `{name}` | {said[one.verdict]}{'; ' if one.note else ''}{one.note} |"
        for name, one in KEYWORDS.items()
    ]
    rows.append(
        "| any other | let pass and named in `x-unenforced`, but names that begin with `x-` |"
    )
    more = f"Where no schema speaks, values nest {ANY_DEPTH} levels deep at most."
    return "\n".join(["| keyword | what becomes of it |", "|---|---|", *rows, "", more, ""])
