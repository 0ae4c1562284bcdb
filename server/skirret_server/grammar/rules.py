"""Rules that refer to each other, and to themselves as far as an automaton can follow.

A rule that reaches itself at an end of its text is a loop and may go on for ever. One that reaches
itself in the middle needs a stack, which an automaton lacks: it goes as deep as DEPTH.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from skirret_server.grammar.errors import BadGrammar, TooComplex
from skirret_server.grammar.syntax import EMPTY, NEVER, Node, alt, repeat, seq, size

DEPTH = 5
_MOST_STATES = 300_000


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule of this name matches."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Many:
    part: Expression
    min: int
    max: int | None
    separator: Expression = EMPTY


Expression = Node | Rule | Chain | Choice | Many


def chain(parts: Sequence[Expression]) -> Expression:
    """One after the other. `a ("," a)*` is a list of a: once there, it grows half as fast."""
    found: list[Expression] = []
    for part in parts:
        if isinstance(part, Many) and (part.min, part.max) == (0, None):
            inner = part.part.parts if isinstance(part.part, Chain) else (part.part,)
            for count in range(min(len(inner), len(found)), 0, -1):
                if tuple(found[-count:]) == inner[-count:]:
                    between = chain(inner[:-count])
                    found[-count:] = [Many(chain(inner[-count:]), 1, None, between)]
                    break
            else:
                found.append(part)
        else:
            found += part.parts if isinstance(part, Chain) else (part,)
    return found[0] if len(found) == 1 else Chain(tuple(found))


def resolved(rules: Mapping[str, Expression], root: str) -> Node:
    """What `root` matches. Raises BadGrammar or TooComplex."""
    return _Rules(rules).node(root, DEPTH)


class _Rules:
    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._rules = rules
        self._below = {name: self._reached(name) for name in rules}
        self._nodes: dict[tuple[str, int], Node] = {}
        self._written = 0

    def node(self, name: str, depth: int) -> Node:
        """`depth`: how often it may stand inside itself; of no account where it never does."""
        if depth == 0:
            return NEVER
        if (name, depth) not in self._nodes:
            found = self._made(name, depth)
            if size(found) > _MOST_STATES:
                raise TooComplex(f"the rule '{name}' grows too large within itself")
            self._nodes[name, depth] = found
        return self._nodes[name, depth]

    def _made(self, name: str, depth: int) -> Node:
        def filled(part: Expression) -> Node:
            return self._filled(part, name, depth)

        if name not in self._below[name]:
            return filled(self._rules[name])
        # name = Before name | name After | name Between name | Rest, with no other `name` at an end
        to_right, rest = _split(self._inlined(name, name, ()), name, at=-1)
        between, before = _split(to_right, name, at=0)
        after, rest = _split(rest, name, at=0)
        one = seq(repeat(filled(before), 0, None), filled(rest), repeat(filled(after), 0, None))
        return repeat(one, 1, None, filled(between)) if between != NEVER else one

    def _filled(self, part: Expression, within: str, depth: int) -> Node:
        """The part of the rule `within`, with what its references match in their place."""
        if isinstance(part, Rule):
            is_inside = within in self._below[part.name]
            return self.node(part.name, depth - 1 if is_inside else DEPTH)
        if isinstance(part, Chain):
            return seq(*(self._filled(one, within, depth) for one in part.parts))
        if isinstance(part, Choice):
            return alt([self._filled(one, within, depth) for one in part.options])
        if isinstance(part, Many):
            between = self._filled(part.separator, within, depth)
            return repeat(self._filled(part.part, within, depth), part.min, part.max, between)
        return part

    def _inlined(self, name: str, target: str, path: tuple[str, ...]) -> Expression:
        """The body of a rule, and of those through which it reaches `target`."""

        def inlined(part: Expression) -> Expression:
            self._written += 1
            if self._written > _MOST_STATES:
                raise TooComplex(f"the rule '{target}' grows too large within itself")
            if isinstance(part, Rule) and self._leads_back(part.name, target, (*path, name)):
                return self._inlined(part.name, target, (*path, name))
            return _mapped(part, inlined)

        return inlined(self._rules[name])

    def _leads_back(self, name: str, target: str, path: Sequence[str]) -> bool:
        return name != target and name not in path and target in self._below[name]

    def _reached(self, name: str) -> set[str]:
        """The rules below this one; itself when it is recursive. Raises BadGrammar."""
        found: set[str] = set()
        waiting = [self._rules[name]]
        while waiting:
            part = waiting.pop()
            if isinstance(part, Rule):
                if part.name not in self._rules:
                    raise BadGrammar(f"there is no rule '{part.name}'")
                if part.name not in found:
                    found.add(part.name)
                    waiting.append(self._rules[part.name])
            else:
                waiting += _inner(part)
        return found


def _split(part: Expression, name: str, at: int) -> tuple[Expression, Expression]:
    """(beside, rest): the part is `beside` and then the rule, or the rest.

    `at` is the end at which the rule stands: -1 the last, 0 the first.
    """
    if part == Rule(name):
        return EMPTY, NEVER
    if isinstance(part, Choice):
        halves = [_split(one, name, at) for one in part.options]
        return _choice([one for one, _ in halves]), _choice([rest for _, rest in halves])
    if isinstance(part, Chain) and part.parts:
        beside, rest = _split(part.parts[at], name, at)
        return _with(part, at, beside), _with(part, at, rest)
    if isinstance(part, Many) and (part.min, part.max) == (0, 1):
        beside, rest = _split(part.part, name, at)
        return beside, _choice([rest, EMPTY])
    return NEVER, part


def _with(chain: Chain, at: int, part: Expression) -> Expression:
    if part == NEVER:
        return NEVER
    parts = list(chain.parts)
    parts[at] = part
    return Chain(tuple(one for one in parts if one != EMPTY))


def _choice(options: Sequence[Expression]) -> Expression:
    possible = tuple(one for one in options if one != NEVER)
    return Choice(possible) if possible else NEVER


def _inner(part: Expression) -> Sequence[Expression]:
    if isinstance(part, Chain):
        return part.parts
    if isinstance(part, Choice):
        return part.options
    return (part.part, part.separator) if isinstance(part, Many) else ()


def _mapped(part: Expression, change: Callable[[Expression], Expression]) -> Expression:
    if isinstance(part, Chain):
        return Chain(tuple(map(change, part.parts)))
    if isinstance(part, Choice):
        return Choice(tuple(map(change, part.options)))
    if isinstance(part, Many):
        return Many(change(part.part), part.min, part.max, change(part.separator))
    return part
