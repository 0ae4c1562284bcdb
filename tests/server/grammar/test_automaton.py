"""Regular expressions as automata, against Python's own engine and a naive walk of tokens."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skirret_server.core import TokenSet
from skirret_server.grammar.automaton import Automaton, Budget, automaton, byte_ranges
from skirret_server.grammar.errors import BadGrammar, TooComplex
from skirret_server.grammar.likely import likely_bytes
from skirret_server.grammar.masks import CompiledGrammar, MaskCache, Vocabulary
from skirret_server.grammar.regex import inside, whole
from skirret_server.grammar.syntax import literal, repeat


def compiled(pattern: str) -> Automaton:
    return automaton(whole(pattern))


atoms = st.sampled_from(["a", "b", "é", "😀", "[ab]", "[^a]", "[a-cé]", ".", r"\d", r"[^\d]", "()"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "??"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(pattern=patterns, texts=st.lists(st.text("ab1é😀\n", max_size=6), min_size=1, max_size=8))
def test_an_automaton_matches_what_python_matches(pattern: str, texts: list[str]) -> None:
    found = compiled(pattern)
    for text in texts:
        # Python's "." stops at \n alone; ours at every line end, of which only \n is used here.
        assert found.matches(text.encode()) == bool(re.fullmatch(pattern, text)), text


@given(low=st.integers(0, 0x10FFFF), high=st.integers(0, 0x10FFFF), code=st.integers(0, 0x10FFFF))
def test_ranges_of_bytes_hold_just_the_characters_between(low: int, high: int, code: int) -> None:
    low, high = sorted((low, high))
    if any(0xD800 <= edge <= 0xDFFF for edge in (low, high, code)):
        return
    data = chr(code).encode()
    # Surrogates are cut out of sets of characters before ranges are made of them.
    pieces = [(low, min(high, 0xD7FF)), (max(low, 0xE000), high)]
    held = any(
        len(ranges) == len(data)
        and all(a <= byte <= b for (a, b), byte in zip(ranges, data, strict=True))
        for first, last in pieces
        if first <= last
        for ranges in byte_ranges(first, last)
    )
    assert held == (low <= code <= high)


def test_an_alternative_that_begins_another_hides_it_not() -> None:
    assert compiled("a|ab").matches(b"ab")
    assert compiled("(a|ab)(c|)").matches(b"abc")
    assert compiled("a??b?").matches(b"ab")


def test_a_separator_stands_between_and_never_last() -> None:
    found = automaton(repeat(literal("a"), 0, None, literal(",")))
    for text, matches in (("", True), ("a", True), ("a,a", True), ("a,", False), (",a", False)):
        assert found.matches(text.encode()) is matches


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^ab$", "ab", True),
        (r"\Aab\z", "ab", True),
        ("^a$|^b$", "b", True),
        (r"[\w]+", "é_9", True),
        (r"\p{Lu}{2}", "ÄB", True),
        (r"\p{Lu}{2}", "äB", False),
        (r"\P{L}", "1", True),
        (r"\x41\u00e9\U0001f600", "Aé😀", True),
        (r"\x{1F600}", "😀", True),
        ("[一-龥]{2}", "漢字", True),
        ("前缀[0-9]", "前缀7", True),
        ("a{2}b", "aab", True),
        ("a{,2}", "a{,2}", True),
        ("x{", "x{", True),
        (r"[\]\-]+", "]-", True),
        ("[]a]+", "]a", True),
        ("[a-]+", "a-", True),
        (r"[^\n]", "\n", False),
        (r"(?P<year>\d{4})-(?<month>\d\d)", "2026-11", True),
        (r"\.\*", ".*", True),
    ],
)
def test_syntax(pattern: str, text: str, matches: bool) -> None:
    assert compiled(pattern).matches(text.encode()) is matches


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing"),
        (")", "unmatched"),
        ("a)", "unmatched"),
        ("[a", "too early"),
        ("*a", "nothing to repeat"),
        ("a{3,2}", "bad repetition"),
        ("[b-a]", "bad range"),
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back-references"),
        (r"\bab", "word boundaries"),
        ("(?i)a", "flags"),
        ("a^b", "beginning"),
        ("a$b", "end"),
        ("(a$)", "anchors"),
        (r"\ud800", "no character"),
        (r"\q", "unknown escape"),
        ("\\", "too early"),
        ("(" * 200 + ")" * 200, "nested"),
        (r"\p{Nope}", "category"),
        ("[[:alpha:]]", "POSIX"),
        (r"a{999999999}", "repetitions"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(pattern: str, reason: str) -> None:
    with pytest.raises(BadGrammar, match=reason):
        whole(pattern)


def test_a_pattern_of_json_schema_is_searched_for() -> None:
    found = automaton(inside("b+"))
    assert found.matches(b"abbc")
    assert not found.matches(b"ac")
    assert not automaton(inside("^b")).matches(b"ab")
    assert automaton(inside(r"^\w$")).matches(b"_")
    assert not automaton(inside(r"^\w$")).matches("é".encode())


def test_what_is_too_large_is_refused_before_it_is_built() -> None:
    with pytest.raises(TooComplex, match="970299"):
        compiled("((a{0,99}){0,99}){0,99}")


def test_time_is_asked_for_while_it_is_built() -> None:
    with pytest.raises(TooComplex, match="too long"):
        automaton(whole("[ab]{1,50}"), Budget(is_over=lambda: True))


def test_states_are_counted_while_it_is_built() -> None:
    with pytest.raises(TooComplex, match="more than 40"):
        automaton(whole("a{50}"), Budget(states=40))


TOKENS = [b"a", b"b", b"ab", b"abc", "é".encode(), b"\xc3", b"\xa9", b"", b"<end>", b"<eot>", b"c"]
SPECIAL = (8, 9)
SIZE = 14


def members(tokens: TokenSet) -> set[int]:
    ids = set(tokens.ids.tolist())
    return set(range(SIZE)) - ids if tokens.are_excluded else ids


def vocabulary() -> Vocabulary:
    return Vocabulary(TOKENS, SPECIAL, SPECIAL, SIZE)


@settings(max_examples=200, deadline=None)
@given(pattern=patterns, text=st.text("abcé", max_size=4))
def test_a_mask_holds_just_the_tokens_after_which_the_text_can_still_match(
    pattern: str, text: str
) -> None:
    found = compiled(pattern)
    state = found.step(1, text.encode())
    if state == 0:
        return
    allowed = members(vocabulary().allowed(found, state))
    expected = {
        token
        for token, data in enumerate(TOKENS)
        if data and token not in SPECIAL and found.step(state, data)
    }
    assert allowed - set(SPECIAL) == expected
    assert (set(SPECIAL) <= allowed) == bool(found.accepts[state])
    assert bool(set(SPECIAL) & allowed) == bool(found.accepts[state])


def test_a_sequence_walks_its_own_way_through_a_shared_grammar() -> None:
    """G20"""
    found = compiled("ab(c|é)")
    grammar = CompiledGrammar(found, likely_bytes(found), MaskCache(vocabulary()))
    one = grammar.start()
    one.accept(2)
    other = one.copy()
    one.accept(10)
    other.accept(5)
    assert one.is_complete()
    assert not other.is_complete()
    other.accept(6)
    assert other.is_complete()


def test_sets_are_kept_within_their_bytes() -> None:
    cache = MaskCache(vocabulary(), most_bytes=1200)
    found = compiled("abc")
    sets = [cache.get(0, found, state) for state in (1, 2, 3)]
    assert cache.get(0, found, 3) is sets[2]
    assert cache.get(0, found, 1) is not sets[0]


def test_nothing_is_allowed_of_an_empty_vocabulary() -> None:
    assert not len(Vocabulary([b""], [], [], size=1).allowed(compiled("a"), 1).ids)
