"""Values of JSON as text: strings with their escapes, and any value at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from skirret_server.grammar.digits import NUMBER
from skirret_server.grammar.syntax import (
    Alt,
    Chars,
    Graph,
    Node,
    Repeat,
    Seq,
    alt,
    complement,
    literal,
    optional,
    repeat,
    seq,
    union,
    without,
)
from skirret_server.grammar.values import plain

# Written with an escape, or not at all.
_ESCAPED = union([(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_SHORT = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_PLAIN = Chars(complement(_ESCAPED))

_HEX = Chars(((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)))
_BACKSLASH, _QUOTE, _SPACE = literal("\\"), literal('"'), optional(literal(" "))
_UNICODE_ESCAPE = seq(  # but surrogates: alone they are no character
    literal("u"),
    alt(
        [
            seq(Chars(((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66))),
                repeat(_HEX, 3, 3)),
            seq(Chars(((0x44, 0x44), (0x64, 0x64))), Chars(((0x30, 0x37),)), repeat(_HEX, 2, 2)),
        ]
    ),
)  # fmt: skip
CHARACTER = alt(
    [
        _PLAIN,
        seq(_BACKSLASH, alt([*map(literal, '"\\/bfnrt'), _UNICODE_ESCAPE])),
    ]
)

COMMA, COLON = seq(literal(","), _SPACE), seq(literal(":"), _SPACE)
TRUE_OR_FALSE = alt([literal("true"), literal("false")])
NULL = literal("null")

ANY_DEPTH = 5  # of arrays and objects in a value that no schema describes


def quoted(content: Node) -> Node:
    return seq(_QUOTE, content, _QUOTE)


def string(least: int = 0, most: int | None = None) -> Node:
    return quoted(repeat(CHARACTER, least, most))


def constant(value: Any) -> Node:
    """Exactly this value, written as we write JSON."""
    return literal(json.dumps(plain(value), ensure_ascii=False, separators=(", ", ": ")))


def escaped(node: Node) -> Node:
    """The texts of the node as they stand inside a JSON string."""
    if isinstance(node, Chars):
        special = [
            code for low, high in _ESCAPED for code in range(low, high + 1) if _holds(node, code)
        ]
        plain = without(node.ranges, _ESCAPED)
        return alt([*([Chars(plain)] if plain else []), *map(_escape, special)])
    if isinstance(node, Seq):
        return seq(*map(escaped, node.parts))
    if isinstance(node, Alt):
        return alt(map(escaped, node.options))
    if isinstance(node, Graph):
        raise TypeError("its bytes are written already")
    return Repeat(escaped(node.part), node.min, node.max, escaped(node.separator))


def array(item: Node, least: int = 0, most: int | None = None) -> Node:
    return seq(literal("["), repeat(item, least, most, COMMA), literal("]"))


def key(name: str) -> Node:
    return seq(constant(name), COLON)


def any_key_but(names: Iterable[str]) -> Node:
    """A string that is none of these, written without escapes."""
    return quoted(_any_but(sorted(names)))


@lru_cache(maxsize=ANY_DEPTH + 1)
def value(depth: int = ANY_DEPTH) -> Node:
    """Any JSON value with at most so many levels."""
    scalars = [string(), NUMBER, TRUE_OR_FALSE, NULL]
    if depth == 0:
        return alt(scalars)
    return alt([*scalars, array(value(depth - 1)), any_object(depth)])


def any_object(depth: int = ANY_DEPTH) -> Node:
    member = seq(string(), COLON, value(depth - 1))
    return seq(literal("{"), repeat(member, 0, None, COMMA), literal("}"))


def _holds(node: Chars, code: int) -> bool:
    return any(low <= code <= high for low, high in node.ranges)


def _escape(code: int) -> Node:
    return literal(f"\\{_SHORT[code]}" if code in _SHORT else f"\\u{code:04x}")


def _any_but(names: list[str]) -> Node:
    """`names` are sorted and begin where we are; "" among them is a text that must go on."""
    by_first: dict[str, list[str]] = {}
    for name in names:
        if name:
            by_first.setdefault(name[0], []).append(name[1:])
    others = without(_PLAIN.ranges, [(ord(first), ord(first)) for first in by_first])
    options: list[Node] = [seq(Chars(others), repeat(_PLAIN, 0, None))]
    if "" not in names:
        options.append(literal(""))
    for first, rests in by_first.items():
        if ord(first) >= 0x20 and first not in '"\\':
            options.append(seq(literal(first), _any_but(rests)))
    return alt(options)
