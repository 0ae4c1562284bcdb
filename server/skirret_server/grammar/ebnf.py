"""EBNF as llama.cpp and SGLang write it.

    root  ::= "[" item ("," item)* "]"   # the text is what root matches
    item  ::= [a-z]+ | "\\"" [^"]* "\\""

Known: literals in double quotes, character classes, groups, `|`, `* + ?`, `{m,n}`, comments, and
rules that reach themselves as far as `grammar.rules` follows them.
"""

from __future__ import annotations

import re

from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.regex import whole
from skirret_server.grammar.rules import Choice, Expression, Many, Rule, chain, resolved
from skirret_server.grammar.syntax import Node

_RULE = re.compile(r"^\s*([A-Za-z_][A-Za-z0-9_-]*)\s*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*(?:\n|$)\s*)*
    (?:(?P<literal>"(?:[^"\\\n]|\\.)*")
    |(?P<set>\[\^?(?:[^\]\\\n]|\\.)*\])
    |(?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    |(?P<bounds>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    |(?P<mark>[()|*+?.]))""",
    re.VERBOSE,
)
_DEPTH = 100


def grammar(text: str) -> Node:
    """What the rule `root` matches. Raises BadGrammar or TooComplex."""
    starts = list(_RULE.finditer(text))
    if (
        not starts
        or text[: starts[0].start()].strip()
        and not _is_comment(text[: starts[0].start()])
    ):
        raise BadGrammar("a grammar is a list of rules: name ::= …")
    bodies: dict[str, str] = {}
    for rule, following in zip(starts, [*starts[1:], None], strict=True):
        if rule[1] in bodies:
            raise BadGrammar(f"the rule '{rule[1]}' is there twice")
        bodies[rule[1]] = text[rule.end() : following.start() if following else len(text)]
    if "root" not in bodies:
        raise BadGrammar("there is no rule 'root'")
    return resolved({name: _Body(name, body).read() for name, body in bodies.items()}, "root")


class _Body:
    """Reads the right side of one rule."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._tokens = self._split(text)
        self._at = 0
        self._depth = 0

    def read(self) -> Expression:
        found = self._alternatives()
        if self._at < len(self._tokens):
            raise self._bad(f"unexpected '{self._tokens[self._at][1]}'")
        return found

    def _split(self, text: str) -> list[tuple[str, str]]:
        tokens, at = [], 0
        while rest := text[at:].strip():
            if _is_comment(rest):
                break
            found = _TOKEN.match(text, at)
            if not found or not found.lastgroup:
                raise self._bad(f"can't read '{rest[:20]}'")
            tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        return tokens

    def _alternatives(self) -> Expression:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return Choice(tuple(options)) if len(options) > 1 else options[0]

    def _sequence(self) -> Expression:
        parts = []
        while self._at < len(self._tokens) and self._tokens[self._at][1] not in ("|", ")"):
            parts.append(self._quantified(self._part()))
        return chain(parts)

    def _part(self) -> Expression:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "literal":
            return whole(_plain(text[1:-1]))
        if kind == "set" or text == ".":
            return whole(text)
        if kind == "name":
            return Rule(text)
        if text != "(":
            raise self._bad(f"unexpected '{text}'")
        self._depth += 1
        if self._depth > _DEPTH:
            raise self._bad(f"groups are nested more than {_DEPTH} deep")
        inner = self._alternatives()
        if not self._take(")"):
            raise self._bad("missing ')'")
        self._depth -= 1
        return inner

    def _quantified(self, part: Expression) -> Expression:
        marks: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind == "bounds":
                low, comma, high = text.strip("{} ").partition(",")
                least = int(low)
                most = (int(high) if high.strip() else None) if comma else least
                if most is not None and most < least:
                    raise self._bad(f"bad repetition {text}")
            elif kind == "mark" and text in marks:
                least, most = marks[text]
            else:
                break
            self._at += 1
            part = Many(part, least, most)
        return part

    def _take(self, text: str) -> bool:
        found = self._tokens[self._at : self._at + 1] == [("mark", text)]
        self._at += found
        return found

    def _bad(self, reason: str) -> BadGrammar:
        return BadGrammar(f"in rule '{self._name}': {reason}")


def _plain(text: str) -> str:
    """A literal as a pattern: its escapes are those of patterns, its other signs plain."""
    return re.sub(r"(\\.)|([^\w\s])", lambda m: m[1] or "\\" + m[2], text, flags=re.DOTALL)


def _is_comment(text: str) -> bool:
    return all(line.strip() == "" or line.strip().startswith("#") for line in text.splitlines())
