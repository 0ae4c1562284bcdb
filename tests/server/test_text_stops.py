"""Stop strings against a naive twin, and the cases peers got wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skirret_server.grammar.automaton import automaton
from skirret_server.grammar.regex import whole
from skirret_server.text.stops import StopPattern, StopScan, StopStrings


def scanned(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    """What came out after each piece, and the match."""
    scan = StopScan(StopStrings(stops))
    out = []
    for piece in pieces:
        out.append(scan.feed(piece))
        if scan.matched is not None:
            return out, scan.matched
    return [*out, scan.flush()], None


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Grows the text by one character and looks whether it ends in a stop; the longest wins."""
    for end in range(1, len(text) + 1):
        ends = [stop for stop in stops if text[:end].endswith(stop)]
        if ends:
            longest = max(ends, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    pieces=st.lists(st.text(alphabet="abc", max_size=4), max_size=12),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_a_scan_gives_what_looking_at_every_prefix_gives(
    pieces: list[str], stops: list[str]
) -> None:
    out, matched = scanned(pieces, stops)
    assert ("".join(out), matched) == naive("".join(pieces), stops)


@given(
    pieces=st.lists(st.text(alphabet="ab", max_size=3), max_size=8),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_no_more_is_held_than_could_begin_a_stop(pieces: list[str], stops: list[str]) -> None:
    out, matched = scanned(pieces, stops)
    if matched is not None:
        return
    text = ""
    for count, piece in enumerate(pieces, start=1):
        text += piece
        held = text[len("".join(out[:count])) :]
        longest = max(
            (k for stop in stops for k in range(len(stop)) if text.endswith(stop[:k])), default=0
        )
        assert len(held) == longest


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "matched"),
    [
        (["AB", "CDE", "FGHIJ", "!"], ["DEFGHIJ"], "ABC", "DEFGHIJ"),
        (["xaby"], ["b", "a"], "x", "a"),
        (["abcd"], ["bcd", "c"], "ab", "c"),
        (["a", "b", "c", "d"], ["bcd", "c"], "ab", "c"),
        (["a", "b", "D", "E"], ["DEF"], "abDE", None),
        (["abc"], ["bc", "c"], "a", "bc"),
    ],
)
def test_the_stop_that_completes_first_wins(
    pieces: list[str], stops: list[str], text: str, matched: str | None
) -> None:
    out, found = scanned(pieces, stops)
    assert ("".join(out), found) == (text, matched)


def test_a_kept_match_stays_in_the_text_and_ends_it() -> None:
    scan = StopScan(StopStrings(["END"]), keeps_match=True)
    assert scan.feed("xEN") == "x"
    assert scan.feed("Dy") == "END"


def pattern(source: str) -> StopPattern:
    return StopPattern(source, automaton(whole(source)))


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=6),
    st.lists(
        st.sampled_from(["a+b", "[ab]c", "b{2,3}", "a.c", "c|ab", "b.*a", "é[ab]"]), min_size=1
    ),
    st.lists(st.sampled_from(["ab", "cc", "bca"]), max_size=2),
)
def test_patterns_stop_where_a_search_at_every_character_would(
    pieces: list[str], sources: list[str], strings: list[str]
) -> None:
    scan = StopScan(StopStrings(strings), [pattern(source) for source in sources])
    out = ""
    for piece in pieces:
        out += scan.feed(piece)
        if scan.matched is not None:
            break
    else:
        out += scan.flush()
    assert out == cut("".join(pieces), [*sources, *strings])


def cut(text: str, sources: Sequence[str]) -> str:
    for end in range(1, len(text) + 1):
        for start in range(end):
            if any(re.fullmatch(source, text[start:end]) for source in sources):
                return text[:start]
    return text


def test_a_pattern_holds_back_no_more_than_what_may_belong_to_it() -> None:
    scan = StopScan(None, [pattern("x[0-9]+;")])
    assert [scan.feed(piece) for piece in ("ab", "x1", "2", "y", "x7;z")] == [
        "ab",
        "",
        "",
        "x12y",
        "",
    ]
    assert scan.matched == "x[0-9]+;"
