"""What becomes of every keyword of JSON Schema's drafts 7, 2019-09 and 2020-12.

One table: the compiler goes by it, and the documents are written from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from skirret_server.grammar.digits import MOST_DIGITS
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
