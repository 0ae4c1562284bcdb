"""The tree that every grammar is turned into: sets of characters, in sequence, choice and loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_CODE_POINT = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)

Ranges = tuple[tuple[int, int], ...]  # sorted, apart, both ends included


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of these."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part`, `min` to `max` times, with `separator` between."""

    part: Node
    min: int
    max: int | None
    separator: Node = Seq(())


@dataclass(frozen=True, slots=True)
class Graph:
    """An automaton that was made already: of each state the bytes low..high and where they lead."""

    edges: tuple[tuple[tuple[int, int, int], ...], ...]
    accepts: frozenset[int]
    start: int = 0


Node = Chars | Seq | Alt | Repeat | Graph

EMPTY = Seq(())
NEVER = Alt(())  # matches nothing at all


def literal(text: str) -> Node:
    return Seq(tuple(Chars(((ord(c), ord(c)),)) for c in text))


def seq(*parts: Node) -> Node:
    """Nothing follows NEVER."""
    return NEVER if NEVER in parts else Seq(parts)


def alt(options: Iterable[Node]) -> Node:
    possible = tuple(option for option in options if option != NEVER)
    return possible[0] if len(possible) == 1 else Alt(possible)


def repeat(part: Node, least: int, most: int | None, separator: Node = EMPTY) -> Node:
    if part == NEVER or most == 0:
        return NEVER if least else EMPTY
    return Repeat(part, least, most, separator)


def optional(part: Node) -> Node:
    return repeat(part, 0, 1)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Every other character; surrogates are none."""
    found, start = [], 0
    for low, high in union([*ranges, SURROGATES]):
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        found.append((start, MAX_CODE_POINT))
    return tuple(found)


def without(ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Ranges:
    return complement([*complement(ranges), *others])


def size(node: Node) -> int:
    """States an automaton needs for it, roughly."""
    if isinstance(node, Chars):
        return 1 + 3 * sum(high > 0x7F for _, high in node.ranges)
    if isinstance(node, Seq):
        return sum(map(size, node.parts))
    if isinstance(node, Alt):
        return 1 + sum(map(size, node.options))
    if isinstance(node, Graph):
        return len(node.edges)
    times = node.max if node.max is not None else max(1, node.min)
    return times * (size(node.part) + size(node.separator))
