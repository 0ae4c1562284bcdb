"""Our automata against outlines-core's index: the same tokens may follow, in every state."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from outlines_core import Index
from outlines_core import Vocabulary as TheirVocabulary

from skirret_server.core import TokenSet
from skirret_server.grammar.automaton import START, automaton
from skirret_server.grammar.masks import Vocabulary
from skirret_server.grammar.regex import whole

TOKENS = [b"a", b"b", b"ab", b"ba", b"abc", b"c", "é".encode(), b"\xc3", b"\xa9"]
END = len(TOKENS)
STOP = END + 1

# Their index stops an alternative as soon as a longer-preferred one matches ("a|ab" never gives
# "ab"). A last character that is in no pattern makes every text end after its last alternative.
SENTINEL = "\U0010ffff"

patterns = st.recursive(
    st.sampled_from(["a", "b", "é", "[ab]", "[a-c]", "c"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


def members(tokens: TokenSet, size: int) -> set[int]:
    ids = set(tokens.ids.tolist())
    return set(range(size)) - ids if tokens.are_excluded else ids


@settings(max_examples=150, deadline=None)
@given(pattern=patterns)
def test_the_same_tokens_may_follow_in_every_state(pattern: str) -> None:
    ours = automaton(whole(pattern))
    vocabulary = Vocabulary(TOKENS, [], [END], size=END + 1)
    spelled = {data: [token] for token, data in enumerate(TOKENS)}
    theirs = Index(
        f"(?:{pattern}){SENTINEL}", TheirVocabulary(END, spelled | {SENTINEL.encode(): [STOP]})
    )
    seen: set[tuple[int, int]] = set()
    waiting = [(START, theirs.get_initial_state())]
    while waiting:
        pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        state, their_state = pair
        allowed = members(vocabulary.allowed(ours, state), END + 1)
        their_allowed = set(theirs.get_allowed_tokens(their_state) or ())
        assert allowed - {END} == their_allowed - {STOP, END}
        assert (END in allowed) == (STOP in their_allowed)
        waiting += [
            (ours.step(state, TOKENS[token]), theirs.get_next_state(their_state, token))
            for token in allowed - {END}
        ]
