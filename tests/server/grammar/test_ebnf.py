"""Grammars in EBNF, as far as an automaton can follow them."""

from __future__ import annotations

import pytest

from skirret_server.grammar.automaton import automaton
from skirret_server.grammar.ebnf import grammar
from skirret_server.grammar.errors import BadGrammar

LIST = r"""
# a list
root ::= "[" item ("," " "? item)* "]"   # of items
item ::= [a-c]+ | "\"" [^"]* "\""
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
        ('root ::= "a" root | "b"', "recursion"),
        ('root ::= a\na ::= b\nb ::= a', "recursion"),
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
