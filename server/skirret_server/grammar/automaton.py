"""The tree as a deterministic automaton over the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from skirret_server.grammar.errors import BadGrammar, TooComplex
from skirret_server.grammar.syntax import NEVER, Alt, Chars, Graph, Node, Repeat, Seq, size

DEAD = 0
START = 1

_UTF8_LENGTHS = ((0x00, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))


@dataclass(frozen=True, slots=True)
class Automaton:
    """State 0 is dead, 1 the start. From every other state an accepting one can be reached."""

    class_of: npt.NDArray[np.uint8]  # of each byte: those of one class never differ
    table: npt.NDArray[np.int32]  # [state, class]: the next state
    accepts: npt.NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.table.nbytes + self.accepts.nbytes + self.class_of.nbytes

    def step(self, state: int, data: bytes) -> int:
        for byte in data:
            state = self.table[state, self.class_of[byte]]
        return int(state)

    def accepts_in(self, state: int) -> bool:
        return bool(self.accepts[state])

    def matches(self, data: bytes) -> bool:
        return bool(self.accepts[self.step(START, data)])


@dataclass(frozen=True, slots=True)
class Budget:
    positions: int = 300_000  # states of the nondeterministic automaton
    states: int = 60_000
    is_over: Callable[[], bool] = lambda: False  # asked now and then: time is up


def automaton(node: Node, budget: Budget | None = None) -> Automaton:
    """Raises TooComplex, or BadGrammar when nothing at all matches."""
    budget = budget or Budget()
    if size(node) > budget.positions:
        raise TooComplex(
            f"the grammar needs about {size(node)} states; at most {budget.positions} are allowed"
        )
    nfa = _Nfa()
    end = nfa.add(node, nfa.state())
    return _determined(nfa, end, budget)


def both(one: Node, other: Node, budget: Budget | None = None) -> Node:
    """The texts that match the one and the other; NEVER when there are none. Raises TooComplex."""
    budget = budget or Budget()
    if NEVER in (one, other):
        return NEVER
    try:
        mine, theirs = automaton(one, budget), automaton(other, budget)
    except BadGrammar:  # nothing matches one of them
        return NEVER
    numbers = {(START, START): 0}
    pairs, edges = [(START, START)], []
    for at, theirs_at in pairs:  # grows while it is walked
        if len(pairs) > budget.states:
            raise TooComplex(f"the grammar needs more than {budget.states} states")
        if budget.is_over():
            raise TooComplex("the grammar takes too long to compile")
        lefts = mine.table[at][mine.class_of].tolist()
        rights = theirs.table[theirs_at][theirs.class_of].tolist()
        outgoing: list[tuple[int, int, int]] = []
        for byte, pair in enumerate(zip(lefts, rights, strict=True)):
            if DEAD in pair:
                continue
            if pair not in numbers:
                numbers[pair] = len(pairs)
                pairs.append(pair)
            if outgoing and outgoing[-1][1:] == (byte - 1, numbers[pair]):
                outgoing[-1] = (outgoing[-1][0], byte, numbers[pair])
            else:
                outgoing.append((byte, byte, numbers[pair]))
        edges.append(tuple(outgoing))
    accepts = frozenset(
        number for (a, b), number in numbers.items() if mine.accepts[a] and theirs.accepts[b]
    )
    return Graph(tuple(edges), accepts) if accepts else NEVER


class _Nfa:
    """Thompson's construction; state 0 is the start."""

    def __init__(self) -> None:
        self.free: list[list[int]] = []  # moves that read nothing
        self.edges: list[list[tuple[int, int, int]]] = []  # low byte, high byte, target

    def state(self) -> int:
        self.free.append([])
        self.edges.append([])
        return len(self.free) - 1

    def add(self, node: Node, start: int) -> int:
        """Builds the node behind `start`; returns where it ends."""
        if isinstance(node, Chars):
            return self._chars(node, start)
        if isinstance(node, Seq):
            for part in node.parts:
                start = self.add(part, start)
            return start
        if isinstance(node, Alt):
            end = self.state()
            for option in node.options:
                branch = self.state()
                self.free[start].append(branch)
                self.free[self.add(option, branch)].append(end)
            return end
        if isinstance(node, Graph):
            return self._graph(node, start)
        return self._repeat(node, start)

    def _graph(self, node: Graph, start: int) -> int:
        states = [self.state() for _ in node.edges]
        end = self.state()
        self.free[start].append(states[node.start])
        for state, outgoing in zip(states, node.edges, strict=True):
            self.edges[state] += [(low, high, states[target]) for low, high, target in outgoing]
        for accepting in node.accepts:
            self.free[states[accepting]].append(end)
        return end

    def _repeat(self, node: Repeat, start: int) -> int:
        end = self.state()
        # A state of its own, or a loop would let what comes before it repeat too.
        here = self.state()
        self.free[start].append(here)
        copies = node.min if node.max is None else node.max
        if node.min == 0:  # not from `here`: the loop comes back there after a separator
            self.free[start].append(end)
        for count in range(1, max(copies, 1) + 1):
            before = here
            here = self.add(node.part, here)
            if count >= node.min:
                self.free[here].append(end)
            if count == max(copies, 1) and node.max is None:
                after = self.state()
                self.free[here].append(after)
                self.free[self.add(node.separator, after)].append(before)
            elif count < copies:
                between = self.state()
                self.free[here].append(between)
                here = self.add(node.separator, between)
        return end

    def _chars(self, node: Chars, start: int) -> int:
        end = self.state()
        # Tails that are the same are shared: most long ranges end in two full bytes.
        tails: dict[tuple[tuple[int, int], ...], int] = {(): end}
        for low, high in node.ranges:
            for sequence in byte_ranges(low, high):
                target = self._tail(sequence[1:], tails)
                self.edges[start].append((*sequence[0], target))
        return end

    def _tail(
        self, sequence: tuple[tuple[int, int], ...], tails: dict[tuple[tuple[int, int], ...], int]
    ) -> int:
        if sequence not in tails:
            state = self.state()
            self.edges[state].append((*sequence[0], self._tail(sequence[1:], tails)))
            tails[sequence] = state
        return tails[sequence]


@lru_cache(maxsize=4096)
def byte_ranges(low: int, high: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Code points low..high as sequences of byte ranges."""
    return tuple(
        sequence
        for first, last in _UTF8_LENGTHS
        if max(low, first) <= min(high, last)
        for sequence in _same_length(chr(max(low, first)).encode(), chr(min(high, last)).encode())
    )


def _same_length(low: bytes, high: bytes) -> Iterator[tuple[tuple[int, int], ...]]:
    if len(low) == 1:
        yield ((low[0], high[0]),)
        return
    if low[0] == high[0]:
        for rest in _same_length(low[1:], high[1:]):
            yield ((low[0], low[0]), *rest)
        return
    lowest, highest = b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)
    first, last = low[0], high[0]
    if low[1:] != lowest:
        for rest in _same_length(low[1:], highest):
            yield ((first, first), *rest)
        first += 1
    if high[1:] != highest:
        last -= 1
    if first <= last:
        yield ((first, last), *(((0x80, 0xBF),) * (len(low) - 1)))
    if high[1:] != highest:
        for rest in _same_length(lowest, high[1:]):
            yield ((high[0], high[0]), *rest)


def _determined(nfa: _Nfa, end: int, budget: Budget) -> Automaton:
    """The subset construction."""
    class_of, classes = _classes(nfa)
    edges = [
        [(int(class_of[low]), int(class_of[high]), target) for low, high, target in outgoing]
        for outgoing in nfa.edges
    ]
    closed = _Closures(nfa, end)
    rows: list[dict[int, int]] = [{}]
    accepting = [False]
    numbers: dict[frozenset[int], int] = {}
    waiting: list[frozenset[int]] = []

    def number(targets: frozenset[int]) -> int:
        states = closed.of(targets)
        if states not in numbers:
            numbers[states] = len(rows)
            rows.append({})
            accepting.append(end in states)
            waiting.append(states)
        return numbers[states]

    number(frozenset({0}))
    while waiting:
        if len(rows) > budget.states:
            raise TooComplex(f"the grammar needs more than {budget.states} states")
        if budget.is_over():
            raise TooComplex("the grammar takes too long to compile")
        states = waiting.pop()
        moves: dict[int, list[int]] = {}
        for state in states:
            for low, high, target in edges[state]:
                for kind in range(low, high + 1):
                    moves.setdefault(kind, []).append(target)
        row = rows[numbers[states]]
        for kind, targets in moves.items():
            row[kind] = number(frozenset(targets))
    return _pruned(rows, accepting, class_of, classes)


class _Closures:
    """Sets of states, followed along the moves that read nothing. Only states that matter stay."""

    def __init__(self, nfa: _Nfa, end: int) -> None:
        self._nfa = nfa
        self._end = end
        self._known: dict[frozenset[int], frozenset[int]] = {}

    def of(self, states: frozenset[int]) -> frozenset[int]:
        known = self._known.get(states)
        if known is None:
            known = self._known[states] = self._follow(states)
        return known

    def _follow(self, states: frozenset[int]) -> frozenset[int]:
        seen, stack = set(states), list(states)
        while stack:
            for target in self._nfa.free[stack.pop()]:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return frozenset(s for s in seen if self._nfa.edges[s] or s == self._end)


def _classes(nfa: _Nfa) -> tuple[npt.NDArray[np.uint8], int]:
    """Bytes between which no edge of the automaton tells a difference."""
    begins = np.zeros(257, bool)
    for outgoing in nfa.edges:
        for low, high, _ in outgoing:
            begins[low] = begins[high + 1] = True
    begins[0] = False
    class_of = np.cumsum(begins[:256]).astype(np.uint8)
    return class_of, int(class_of[-1]) + 1


def _pruned(
    rows: list[dict[int, int]],
    accepting: list[bool],
    class_of: npt.NDArray[np.uint8],
    classes: int,
) -> Automaton:
    """Moves into states that never lead to the end go to the dead state."""
    before: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for target in row.values():
            before[target].append(state)
    live = {state for state, accepts in enumerate(accepting) if accepts}
    stack = list(live)
    while stack:
        for state in before[stack.pop()]:
            if state not in live:
                live.add(state)
                stack.append(state)
    if START not in live:
        raise BadGrammar("nothing matches this grammar")
    table = np.zeros((len(rows), classes), np.int32)
    for state, row in enumerate(rows):
        if state in live:
            for kind, target in row.items():
                table[state, kind] = target if target in live else DEAD
    return Automaton(class_of, table, np.array(accepting))
