r"""Parses regular expressions into the tree. What can't be honoured is refused by name.

Known: literals, `.`, classes with ranges and negation, `\d \w \s` and their negations, `\p{..}`,
groups, `|`, `* + ? {m} {m,} {m,n}` (lazy ones match the same texts), and anchors at either end.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.syntax import (
    EMPTY,
    MAX_CODE_POINT,
    SURROGATES,
    Chars,
    Node,
    Ranges,
    Repeat,
    alt,
    complement,
    repeat,
    seq,
    union,
    without,
)

_DEPTH = 100
_MOST_REPEATS = 100_000

ANY = Chars(complement(()))
NO_LINE_END = Chars(complement([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]))

_CONTROLS = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B, "0": 0x00, "a": 0x07, "e": 0x1B}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}

_ASCII: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
          (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
          (0xFEFF, 0xFEFF)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Anchor:
    is_start: bool


_Part = Node | _Anchor


def whole(pattern: str) -> Node:
    """The pattern as what a whole text must be. Raises BadGrammar."""
    return alt(
        seq(*_without_anchors(branch)) for branch in _Parser(pattern, is_ascii=False).branches()
    )


def inside(pattern: str) -> Node:
    """The texts that the pattern is found in, as JSON Schema means it. Raises BadGrammar."""
    anything = Repeat(ANY, 0, None)
    options = []
    for branch in _Parser(pattern, is_ascii=True).branches():
        before = EMPTY if branch[:1] == [_Anchor(True)] else anything
        after = EMPTY if branch[-1:] == [_Anchor(False)] else anything
        options.append(seq(before, *_without_anchors(branch), after))
    return alt(options)


def is_anchored(pattern: str) -> bool:
    """Raises BadGrammar."""
    branches = _Parser(pattern, is_ascii=False).branches()
    return any(isinstance(part, _Anchor) for branch in branches for part in branch)


def _without_anchors(branch: list[_Part]) -> list[Node]:
    """An anchor says nothing at its own end of a whole text, and anywhere else too much."""
    parts = list(branch)
    while parts and parts[0] == _Anchor(True):
        del parts[0]
    while parts and parts[-1] == _Anchor(False):
        del parts[-1]
    for part in parts:
        if isinstance(part, _Anchor):
            raise BadGrammar(
                f"'{'^' if part.is_start else '$'}' is only supported at the "
                f"{'beginning' if part.is_start else 'end'} of a pattern"
            )
    return [part for part in parts if not isinstance(part, _Anchor)]


class _Parser:
    def __init__(self, pattern: str, *, is_ascii: bool) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._is_ascii = is_ascii

    def branches(self) -> list[list[_Part]]:
        """The top-level alternatives, anchors and all."""
        found = self._alternatives()
        if self._at < len(self._text):
            raise self._bad("unmatched ')'")
        return found

    def _alternatives(self) -> list[list[_Part]]:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches

    def _sequence(self) -> list[_Part]:
        parts: list[_Part] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            part = self._atom()
            parts.append(part if isinstance(part, _Anchor) else self._quantified(part))
        return parts

    def _atom(self) -> _Part:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == ".":
            return NO_LINE_END
        if character in "^$":
            return _Anchor(character == "^")
        if character == "\\":
            return self._escape()
        if character in "*+?":
            raise self._bad(f"nothing to repeat before '{character}'")
        return _one(ord(character))

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH:
            raise self._bad(f"groups are nested more than {_DEPTH} deep")
        if self._take("?"):
            self._group_kind()
        branches = self._alternatives()
        if not self._take(")"):
            raise self._bad("missing ')'")
        self._depth -= 1
        return alt(seq(*_without_anchors_inside(branch)) for branch in branches)

    def _group_kind(self) -> None:
        if self._take(":"):
            return
        named = self._take("P<") or (
            self._peek() == "<" and self._text[self._at + 1 :][:1].isalpha()
        )
        if named:
            end = self._text.find(">", self._at)
            if end < 0:
                raise self._bad("missing '>' after a group's name")
            self._at = end + 1
            return
        if self._peek() in "=!" or self._take("<"):
            raise self._bad("look-around is not supported")
        raise self._bad("flags and group extensions are not supported")

    def _quantified(self, part: Node) -> Node:
        while True:
            bounds = self._bounds()
            if bounds is None:
                return part
            self._take("?") or self._take("+")  # lazy and possessive: the same texts, whole
            least, most = bounds
            if most is not None and most < least:
                raise self._bad(f"bad repetition {{{least},{most}}}")
            part = repeat(part, least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        if not low.isdecimal() or not (high.isdecimal() or not high):
            return None  # a brace that is a character
        self._at = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > _MOST_REPEATS:
            raise self._bad(f"more than {_MOST_REPEATS} repetitions")
        return least, most

    def _class(self) -> Node:
        is_negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            low = self._class_item()
            if (
                isinstance(low, int)
                and self._peek() == "-"
                and self._text[self._at + 1 :][:1] != "]"
            ):
                self._next()
                high = self._class_item()
                if not isinstance(high, int) or high < low:
                    raise self._bad("bad range in a character class")
                ranges.append((low, high))
            else:
                ranges += [(low, low)] if isinstance(low, int) else low
        self._next()
        found = complement(ranges) if is_negated else without(ranges, [SURROGATES])
        if not found:
            raise self._bad("a character class that is empty")
        return Chars(found)

    def _class_item(self) -> int | Ranges:
        character = self._next()
        if character == "[" and self._peek() == ":":
            raise self._bad("POSIX classes are not supported")
        if character != "\\":
            return ord(character)
        if self._take("b"):
            return 0x08
        found = self._escape()
        if isinstance(found, Chars):
            single = len(found.ranges) == 1 and found.ranges[0][0] == found.ranges[0][1]
            return found.ranges[0][0] if single else found.ranges
        raise self._bad("an anchor in a character class")

    def _escape(self) -> Chars | _Anchor:
        letter = self._next()
        if letter in "AzZ":
            return _Anchor(letter == "A")
        if letter in "bB":
            raise self._bad("word boundaries are not supported")
        if letter in "pP":
            return Chars(self._property(is_negated=letter == "P"))
        if letter.lower() in "dws":
            named = _ASCII[letter.lower()] if self._is_ascii else _unicode(letter.lower())
            return Chars(complement(named) if letter.isupper() else named)
        if letter in _HEX_DIGITS:
            return _one(self._hex(_HEX_DIGITS[letter]))
        if letter.isdigit() and letter != "0":
            raise self._bad("back-references are not supported")
        if letter in _CONTROLS:
            return _one(_CONTROLS[letter])
        if letter.isalnum():
            raise self._bad(f"unknown escape '\\{letter}'")
        return _one(ord(letter))

    def _property(self, *, is_negated: bool) -> Ranges:
        if not self._take("{"):
            name = self._next()
        else:
            end = self._text.find("}", self._at)
            if end < 0:
                raise self._bad("missing '}' after a property's name")
            name = self._text[self._at : end]
            self._at = end + 1
        ranges = _category(name)
        if not ranges:
            raise self._bad(f"unknown Unicode category '{name}'")
        return complement(ranges) if is_negated else ranges

    def _hex(self, digits: int) -> int:
        if self._take("{"):
            end = self._text.find("}", self._at)
            text = self._text[self._at : end]
            self._at = end + 1
        else:
            text = self._text[self._at : self._at + digits]
            self._at += digits
        try:
            code = int(text, 16)
        except ValueError:
            raise self._bad(f"bad hexadecimal escape '{text}'") from None
        if code > MAX_CODE_POINT or SURROGATES[0] <= code <= SURROGATES[1]:
            raise self._bad(f"U+{code:04X} is no character")
        return code

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1] or "\0"

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._bad("the pattern ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _bad(self, reason: str) -> BadGrammar:
        return BadGrammar(f"{reason} (at character {self._at})")


def _without_anchors_inside(branch: list[_Part]) -> list[Node]:
    for part in branch:
        if isinstance(part, _Anchor):
            raise BadGrammar("anchors inside a group are not supported")
    return [part for part in branch if not isinstance(part, _Anchor)]


def _one(code: int) -> Chars:
    return Chars(((code, code),))


@lru_cache(maxsize=8)
def _unicode(letter: str) -> Ranges:
    tests: dict[str, Callable[[str], bool]] = {
        "d": str.isdecimal,
        "s": str.isspace,
        "w": lambda c: c.isalnum() or c == "_",
    }
    return _where(tests[letter])


@lru_cache(maxsize=64)
def _category(name: str) -> Ranges:
    return _where(lambda character: unicodedata.category(character).startswith(name))


def _where(test: Callable[[str], bool]) -> Ranges:
    codes = (code for code in range(MAX_CODE_POINT + 1) if not 0xD800 <= code <= 0xDFFF)
    return union((code, code) for code in codes if test(chr(code)))
