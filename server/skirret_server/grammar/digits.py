"""Numbers of JSON within bounds, as trees over their digits."""

from __future__ import annotations

from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.syntax import Chars, Node, alt, literal, optional, repeat, seq

# Beyond these a model only loses itself in digits; every JSON reader holds such numbers exactly.
MOST_DIGITS = 15
_FRACTION_DIGITS = 15

DIGIT = Chars(((0x30, 0x39),))
_NONZERO = Chars(((0x31, 0x39),))
_ZEROS = repeat(literal("0"), 1, _FRACTION_DIGITS)
_FRACTION = seq(literal("."), repeat(DIGIT, 1, _FRACTION_DIGITS))
_EXPONENT = seq(
    Chars(((0x45, 0x45), (0x65, 0x65))),
    optional(Chars(((0x2B, 0x2B), (0x2D, 0x2D)))),
    repeat(DIGIT, 1, 2),
)
_NATURAL = alt([literal("0"), seq(_NONZERO, repeat(DIGIT, 0, MOST_DIGITS - 1))])
_MINUS = literal("-")

INTEGER = seq(optional(_MINUS), _NATURAL)
NUMBER = seq(INTEGER, optional(_FRACTION), optional(_EXPONENT))


def integer(low: int | None, high: int | None) -> Node:
    """Integers low..high, written plainly. Raises BadGrammar when there are none."""
    if low is None and high is None:
        return INTEGER
    _check(low, high)
    limit = 10**MOST_DIGITS - 1
    first = -limit if low is None else max(low, -limit)
    last = limit if high is None else min(high, limit)
    options: list[Node] = []
    if first < 0:
        options.append(seq(_MINUS, _naturals(max(1, -last), -first)))
    if last >= 0:
        options.append(_naturals(max(0, first), last))
    return alt(options)


def number(low: int | None, high: int | None) -> Node:
    """Numbers low..high; both are whole. Raises BadGrammar when there are none."""
    if low is None and high is None:
        return NUMBER
    _check(low, high)
    limit = 10**MOST_DIGITS - 1
    first = -limit if low is None else max(low, -limit)
    last = limit if high is None else min(high, limit)
    options: list[Node] = []
    if first < 0:
        options.append(seq(_MINUS, _positive(max(0, -last), -first)))
    if last >= 0:
        options.append(_positive(max(0, first), last))
    return alt(options)


def _positive(low: int, high: int) -> Node:
    """0 <= low..high with fractions; the last of them may only be followed by zeros."""
    end = seq(_naturals(high, high), optional(seq(literal("."), _ZEROS)))
    if low == high:
        return end
    return alt([seq(_naturals(low, high - 1), optional(_FRACTION)), end])


def _naturals(low: int, high: int) -> Node:
    """0 <= low..high, by number of digits."""
    options = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        options.append(_same_length(str(low), str(last)))
        low = last + 1
    return alt(options)


def _same_length(low: str, high: str) -> Node:
    if not low:
        return literal("")
    rest = len(low) - 1
    if low[0] == high[0]:
        return seq(literal(low[0]), _same_length(low[1:], high[1:]))
    first, last = int(low[0]), int(high[0])
    options = []
    if low[1:] != "0" * rest:
        options.append(seq(literal(low[0]), _same_length(low[1:], "9" * rest)))
        first += 1
    if high[1:] != "9" * rest:
        last -= 1
    if first <= last:
        middle = Chars(((0x30 + first, 0x30 + last),))
        options.append(seq(middle, repeat(DIGIT, rest, rest)))
    if high[1:] != "9" * rest:
        options.append(seq(literal(high[0]), _same_length("0" * rest, high[1:])))
    return alt(options)


def _check(low: int | None, high: int | None) -> None:
    if low is not None and high is not None and low > high:
        raise BadGrammar(f"no number is at least {low} and at most {high}")
