"""Arrays whose items all differ, where there are few values that an item can have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from skirret_server.grammar.automaton import DEAD, START, Automaton
from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.keywords import UNIQUE_STATES
from skirret_server.grammar.syntax import NEVER, Graph, Node
from skirret_server.grammar.values import identity

_MOST_VALUES = 64

Texts = Mapping[str, bytes]  # of each value, by its identity


def texts(found: Automaton) -> Texts | None:
    """One text for each JSON value that matches; None when there are too many of them."""
    known: dict[str, bytes] = {}
    left = 16 * _MOST_VALUES  # texts: some are of the same value
    stack = [(START, b"", frozenset((START,)))]
    while stack:
        state, text, path = stack.pop()
        if found.accepts[state]:
            known.setdefault(identity(json.loads(text)), text)
            left -= 1
        if left < 0 or len(known) > _MOST_VALUES:
            return None
        row = found.table[state][found.class_of].tolist()
        for byte in range(255, -1, -1):
            target = row[byte]
            if target in path:
                return None  # it can go round for ever
            if target != DEAD:
                stack.append((target, text + bytes((byte,)), path | {target}))
        if len(stack) > 256 * _MOST_VALUES:
            return None
    return known


def distinct(first: Sequence[Texts], rest: Texts, least: int, most: int | None) -> Node:
    """What stands between the brackets. Raises BadGrammar when that has too many states."""
    states = _States()
    start = states.of(frozenset())
    waiting, seen = [frozenset[str]()], {frozenset[str]()}
    while waiting:
        used = waiting.pop()
        if len(used) == most:
            continue
        befores = [states.of(used)] if not used else states.after_comma(used)
        here = first[len(used)] if len(used) < len(first) else rest
        for value, text in here.items():
            if value in used:
                continue
            following = used | {value}
            states.path(befores, text, states.of(following))
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    accepts = frozenset(states.of(used) for used in seen if len(used) >= least)
    return Graph(tuple(map(tuple, states.edges)), accepts, start) if accepts else NEVER


class _States:
    """One for each set of values that were used; others on the way there."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []
        self._of: dict[frozenset[str], int] = {}

    def of(self, used: frozenset[str]) -> int:
        if used not in self._of:
            self._of[used] = self._new()
        return self._of[used]

    def after_comma(self, used: frozenset[str]) -> list[int]:
        comma, space = self._new(), self._new()
        self._edge(self.of(used), b",", comma)
        self._edge(comma, b" ", space)
        return [comma, space]

    def path(self, befores: Sequence[int], text: bytes, end: int) -> None:
        here = list(befores)
        for at in range(len(text)):
            following = end if at == len(text) - 1 else self._new()
            for state in here:
                self._edge(state, text[at : at + 1], following)
            here = [following]

    def _edge(self, state: int, byte: bytes, target: int) -> None:
        self.edges[state].append((byte[0], byte[0], target))

    def _new(self) -> int:
        if len(self.edges) >= UNIQUE_STATES:
            raise BadGrammar("'uniqueItems' is not supported over so many values")
        self.edges.append([])
        return len(self.edges) - 1
