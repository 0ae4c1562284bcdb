"""Grammars in EBNF, as far as an automaton can follow them."""

from __future__ import annotations

import functools
import itertools
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skirret_server.grammar.automaton import automaton
from skirret_server.grammar.ebnf import _Body, grammar
from skirret_server.grammar.errors import BadGrammar, TooComplex
from skirret_server.grammar.rules import DEPTH, Chain, Choice, Expression, Many, Rule
from skirret_server.grammar.syntax import Node

LIST = r"""
# a list
root ::= "[" item ("," " "? item)* "]"   # of items
item ::= [a-c]+ | "\"" [^"]* "\""
"""


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("text", "matches"),
    [("[a]", True), ('[ab, "x,y"]', True), ("[]", False), ("[d]", False), ("[a,]", False)],
)
def test_a_grammar_matches_what_its_root_says(text: str, matches: bool) -> None:
    assert automaton(grammar(LIST)).matches(text.encode()) is matches


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('root ::= "b"', "b"),
        ('root ::= "a.b*"', "a.b*"),
        ('root ::= "\\n\\t\\u00e9é"', "\n\té\xe9".replace("\xe9", "é")),
        ("root ::= [0-9]{2,3}", "123"),
        ("root ::= [0-9]{2} .", "12x"),
        ('root ::= ("a" | "b")+ "c"?', "abab"),
        ('root ::= greeting " " name\ngreeting ::= "hi" | "hello"\nname ::= [A-Z] [a-z]*',
         "hello Ada"),
        ('root ::= "a"\n  | "b"', "b"),
        ('root ::= "#" # no comment before', "#"),
        ('root ::= ""', ""),
    ],
)  # fmt: skip
def test_syntax(source: str, text: str) -> None:
    assert automaton(grammar(source)).matches(text.encode())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "list of rules"),
        ("what", "list of rules"),
        ('item ::= "a"', "root"),
        ("root ::= item", "no rule 'item'"),
        ("root ::= a\na ::= none", "no rule 'none'"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= ("a"', "missing"),
        ('root ::= "a")', "unexpected"),
        ('root ::= * "a"', "unexpected"),
        ('root ::= "a" ~', "can't read"),
        ('root ::= "a"{3,2}', "repetition"),
        ("root ::= [b-a]", "bad range"),
    ],
)  # fmt: skip
def test_what_can_not_be_followed_is_refused(source: str, reason: str) -> None:
    with pytest.raises(BadGrammar, match=reason):
        grammar(source)


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ('root ::= item | item "," root\nitem ::= [a-z]+', ["a", ",".join("abcdefghijklmnopq")]),
        ('root ::= ws "x"\nws ::= ([ \\t] ws)?', ["x", " " * 40 + "x"]),
        ('root ::= root "-" [0-9] | [0-9]', ["1" + "-1" * 30]),
        ('root ::= a "x"\na ::= root "y" | "z"', ["zx" + "yx" * 20]),
        ('root ::= root "+" root | "!" root | root "?" | "1"', ["!1?" + "+!!1??" * 12]),
        ('root ::= "(" root ")" | "1"', ["((((1))))"]),
    ],
)
def test_rules_that_reach_themselves_are_followed(source: str, texts: list[str]) -> None:
    found = automaton(grammar(source))
    assert [text for text in texts if not found.matches(text.encode())] == []


def test_a_rule_stands_inside_itself_as_often_as_we_say() -> None:
    found = automaton(grammar('root ::= "(" root ")" | "1"'))
    deepest = DEPTH - 1
    assert found.matches(b"(" * deepest + b"1" + b")" * deepest)
    assert not found.matches(b"(" * (deepest + 1) + b"1" + b")" * (deepest + 1))


def test_a_grammar_of_json_as_llama_cpp_writes_it_compiles() -> None:
    found = automaton(grammar(JSON))
    assert found.matches(b'{"a": [1, {"b": [2.5, null]}], "c": {}}')
    assert not found.matches(b'{"a": [1, }')


@pytest.mark.parametrize(
    "source",
    ['root ::= "a" root', "root ::= root", "root ::= a\na ::= b\nb ::= a"],
)
def test_a_grammar_without_an_end_is_refused(source: str) -> None:
    with pytest.raises(BadGrammar, match="nothing matches"):
        automaton(grammar(source))


def test_a_grammar_that_grows_too_large_within_itself_is_refused() -> None:
    holes = " ".join(f'"{letter}" root "."' for letter in string.ascii_letters)
    source = f'root ::= {holes} | "x"'
    with pytest.raises(TooComplex, match="too large"):
        grammar(source)


WORDS = st.sampled_from(["root", "a", "b", '"x"', '"y"', '"("', '""'])
BODIES = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(" ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(inner, st.sampled_from("?*+")).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(bodies=st.lists(BODIES, min_size=3, max_size=3))
def test_only_texts_that_the_rules_derive_match(bodies: list[str]) -> None:
    names = ("root", "a", "b")
    source = "\n".join(f"{name} ::= {body}" for name, body in zip(names, bodies, strict=True))
    try:
        found = automaton(grammar(source))
        matched = {text for text in short("xy(", 3) if found.matches(text.encode())}
    except BadGrammar:
        matched = set()
    rules = {name: _Body(name, body).read() for name, body in zip(names, bodies, strict=True)}
    derived = derivable(rules, 3)
    assert matched <= derived["root"]
    if all(name not in body for body in bodies for name in ("a", "b")):
        assert matched == derived["root"]  # so short, they need no more depth than there is


def short(letters: str, length: int) -> list[str]:
    return ["".join(t) for n in range(length + 1) for t in itertools.product(letters, repeat=n)]


@functools.cache
def leaf(part: Node, length: int) -> set[str]:
    found = automaton(part)
    return {text for text in short("xy(", length) if found.matches(text.encode())}


def derivable(rules: dict[str, Expression], length: int) -> dict[str, set[str]]:
    """The texts of each rule, up to this length, by trying until nothing is new."""
    known: dict[str, set[str]] = {name: set() for name in rules}

    def join(one: set[str], other: set[str]) -> set[str]:
        return {a + b for a in one for b in other if len(a + b) <= length}

    def of(part: Expression) -> set[str]:
        if isinstance(part, Rule):
            return known[part.name]
        if isinstance(part, Choice):
            return set().union(*map(of, part.options))
        if isinstance(part, Chain):
            return functools.reduce(join, map(of, part.parts), {""})
        if isinstance(part, Many):
            inner, found = of(part.part), {""} if part.min == 0 else of(part.part)
            while (
                part.max != 1
                and (more := found | join(join(found, of(part.separator)), inner)) != found
            ):
                found = more
            return found | (inner if part.max == 1 else set())
        return leaf(part, length)

    while (following := {name: of(body) for name, body in rules.items()}) != known:
        known = {name: known[name] | texts for name, texts in following.items()}
    return known
