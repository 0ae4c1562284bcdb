"""Numbers of JSON within bounds and steps, as automata over their decimal digits.

Bounds and steps are decimal: 0.07 is a multiple of 0.01, whatever binary fractions make of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.syntax import (
    NEVER,
    Chars,
    Graph,
    Node,
    alt,
    literal,
    optional,
    repeat,
    seq,
)

# Beyond these a model only loses itself in digits; every JSON reader holds such numbers exactly, so
# that none rounds one over its bound.
MOST_DIGITS = 15
_MOST_STATES = 10_000  # about, of the remainders of a step

DIGIT = Chars(((0x30, 0x39),))
_NONZERO = Chars(((0x31, 0x39),))
_FRACTION = seq(literal("."), repeat(DIGIT, 1, MOST_DIGITS))
_EXPONENT = seq(
    Chars(((0x45, 0x45), (0x65, 0x65))),
    optional(Chars(((0x2B, 0x2B), (0x2D, 0x2D)))),
    repeat(DIGIT, 1, 2),
)
_NATURAL = alt([literal("0"), seq(_NONZERO, repeat(DIGIT, 0, MOST_DIGITS - 1))])
_MINUS = literal("-")

INTEGER = seq(optional(_MINUS), _NATURAL)
NUMBER = seq(INTEGER, optional(_FRACTION), optional(_EXPONENT))


@dataclass(frozen=True, slots=True)
class Bound:
    value: Decimal
    is_open: bool = False  # the value itself is out


def integer(low: Bound | None, high: Bound | None, step: Decimal | None = None) -> Node:
    """Integers low..high that are multiples of `step`; NEVER when there are none.

    Raises BadGrammar when the step has too many remainders.
    """
    if low is None and high is None and step in (None, 1):
        return INTEGER
    return _signed(low, high, _Step.of(step, is_whole=True), most_places=0)


def number(low: Bound | None, high: Bound | None, step: Decimal | None = None) -> Node:
    """Numbers, likewise; with a bound or a step they are written without an exponent."""
    if low is None and high is None and step is None:
        return NUMBER
    parts = _Step.of(step, is_whole=False)
    return _signed(low, high, parts, most_places=max(1, parts.places) if step else MOST_DIGITS)


@dataclass(frozen=True, slots=True)
class _Step:
    """A number is a multiple when it has no digits after `places`, and none left over `size`."""

    size: int
    places: int  # MOST_DIGITS without a step: any digits will do
    digits: int = MOST_DIGITS  # of a number; fewer when there are many remainders

    @classmethod
    def of(cls, step: Decimal | None, *, is_whole: bool) -> _Step:
        """Raises BadGrammar when it has too many remainders."""
        if step is None:
            return cls(1, 0 if is_whole else MOST_DIGITS)
        _, digits, exponent = step.as_tuple()
        assert isinstance(exponent, int), "a step is finite"
        if exponent > MOST_DIGITS:
            raise _too_fine(step)
        size, places = int("".join(map(str, digits))) * 10 ** max(exponent, 0), max(-exponent, 0)
        while places and size % 10 == 0:
            size, places = size // 10, places - 1
        if is_whole:
            size, places = size // gcd(size, 10**places), 0
        states, most = 0, 0
        while most < MOST_DIGITS and states <= _MOST_STATES:
            most += 1
            states += min(9 * 10 ** (most - 1), size)
        if states > _MOST_STATES and most <= len(str(size)):
            raise _too_fine(step)
        return cls(size, places, most)


@dataclass(frozen=True, slots=True)
class _Limit:
    """Of a number without its sign."""

    whole: str
    places: str  # without zeros at the end
    is_upper: bool
    is_open: bool

    @classmethod
    def of(cls, bound: Bound, *, is_upper: bool) -> _Limit:
        whole, _, places = f"{abs(bound.value):f}".partition(".")
        return cls(whole, places.rstrip("0"), is_upper, bound.is_open)

    def admits(self, compared: int) -> bool:
        if compared == 0:
            return not self.is_open
        return (compared < 0) == self.is_upper


@lru_cache(maxsize=256)
def _signed(low: Bound | None, high: Bound | None, step: _Step, most_places: int) -> Node:
    options: list[Node] = []
    if low is None or low.value < 0:
        limits = [] if low is None else [_Limit.of(low, is_upper=True)]
        if high is not None and high.value <= 0:
            limits.append(_Limit.of(high, is_upper=False))
        options.append(seq(_MINUS, _Magnitudes(limits, step, most_places).graph()))
    if high is None or high.value >= 0:
        limits = [] if high is None else [_Limit.of(high, is_upper=True)]
        if low is not None and low.value >= 0:
            limits.append(_Limit.of(low, is_upper=False))
        options.append(_Magnitudes(limits, step, most_places).graph())
    return alt(options)


class _Read(NamedTuple):
    """What counts of the digits read so far."""

    whole: int  # digits before the point
    places: int  # after it; -1 before the point
    is_zero: bool  # they begin with a zero: nothing but the point may follow
    remainder: int
    compared: tuple[int, ...]  # with each limit's digits: -1 less, 0 the same, 1 more


class _Magnitudes:
    """Numbers without a sign. States with the same future are one, so the graph is small."""

    def __init__(self, limits: list[_Limit], step: _Step, most_places: int) -> None:
        self._limits = limits
        self._step = step
        self._most_places = most_places
        self._known: dict[_Read, int | None] = {}  # None: no number begins like this
        self._numbers: dict[tuple[bool, tuple[tuple[int, int, int], ...]], int] = {}

    def graph(self) -> Node:
        start = self._state(_Read(0, -1, False, 0, (0,) * len(self._limits)))
        if start is None:
            return NEVER
        accepts = frozenset(state for (ends, _), state in self._numbers.items() if ends)
        return Graph(tuple(edges for _, edges in self._numbers), accepts, start)

    def _state(self, read: _Read) -> int | None:
        if read not in self._known:
            edges: list[tuple[int, int, int]] = []
            for byte, following in self._moves(read):
                target = self._state(following)
                if target is None:
                    continue
                if edges and edges[-1][1:] == (byte - 1, target):
                    edges[-1] = (edges[-1][0], byte, target)
                else:
                    edges.append((byte, byte, target))
            key = self._may_end(read), tuple(edges)
            self._known[read] = (
                self._numbers.setdefault(key, len(self._numbers)) if key[0] or edges else None
            )
        return self._known[read]

    def _moves(self, read: _Read) -> Iterator[tuple[int, _Read]]:
        if read.places < 0:
            if 0 < read.whole < self._step.digits and self._most_places:
                yield ord("."), self._at_point(read)
            if not read.is_zero and read.whole < self._step.digits:
                for digit in range(10):
                    yield 0x30 + digit, self._with_digit(read, digit)
        elif read.places < self._most_places and read.whole + read.places < self._step.digits:
            for digit in range(10 if read.places < self._step.places else 1):
                yield 0x30 + digit, self._with_place(read, digit)

    def _with_digit(self, read: _Read, digit: int) -> _Read:
        compared = tuple(
            1 if read.whole >= len(limit.whole) else known or _sign(digit, limit.whole[read.whole])
            for known, limit in zip(read.compared, self._limits, strict=True)
        )
        remainder = (10 * read.remainder + digit) % self._step.size
        is_zero = read.whole == 0 and digit == 0
        return _Read(read.whole + 1, -1, is_zero, remainder, compared)

    def _at_point(self, read: _Read) -> _Read:
        return _Read(read.whole, 0, False, read.remainder, self._by_length(read))

    def _by_length(self, read: _Read) -> tuple[int, ...]:
        """A number with fewer digits before the point is less, whatever they are."""
        return tuple(
            -1 if read.whole < len(limit.whole) else known
            for known, limit in zip(read.compared, self._limits, strict=True)
        )

    def _with_place(self, read: _Read, digit: int) -> _Read:
        compared = tuple(
            known or _sign(digit, limit.places[read.places : read.places + 1] or "0")
            for known, limit in zip(read.compared, self._limits, strict=True)
        )
        remainder = read.remainder
        if read.places < self._step.places:
            remainder = (10 * remainder + digit) % self._step.size
        return _Read(read.whole, read.places + 1, False, remainder, compared)

    def _may_end(self, read: _Read) -> bool:
        if not read.whole or read.places == 0:
            return False
        left = max(0, self._step.places - max(read.places, 0))
        if read.remainder * 10**left % self._step.size:
            return False
        compared = self._by_length(read) if read.places < 0 else read.compared
        return all(
            limit.admits(known or (-1 if len(limit.places) > max(read.places, 0) else 0))
            for known, limit in zip(compared, self._limits, strict=True)
        )


def _sign(digit: int, other: str) -> int:
    return (digit > int(other)) - (digit < int(other))


def _too_fine(step: Decimal) -> BadGrammar:
    return BadGrammar(f"'multipleOf' of {step} is not supported: it leaves too many remainders")
