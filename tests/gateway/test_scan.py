from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_core import from_json

from skirret_gateway.scan import HEAD_BYTES, MAX_DEPTH, NotJson, WrongType, scan

_NAMES = st.sampled_from(["model", "stream", "service_tier", "messages", "prompt", "input", "x"])
_TEXT = st.text('a"\\/{}[],:\x00\n\t\u2028é😀 ', max_size=8)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=6,
)
_MEMBERS = st.lists(st.tuples(_NAMES | _TEXT, _VALUES), max_size=6)


def written(members: list[tuple[str, Any]], *, ascii_only: bool, indent: int | None) -> bytes:
    """An object with these members in this order, equal keys included."""
    parts = [
        f"{json.dumps(key, ensure_ascii=ascii_only)}"
        f": {json.dumps(value, ensure_ascii=ascii_only, indent=indent)}"
        for key, value in members
    ]
    return ("{" + " ,\n".join(parts) + "}").encode()


def expected(body: dict[str, Any]) -> tuple[str | None, bool, bool]:
    return body.get("model"), body.get("stream") is True, body.get("service_tier") == "flex"


@given(_MEMBERS, st.booleans(), st.sampled_from([None, 1]))
@example([("model", "a"), ("model", "b")], True, None)
@example([("x", {"model": "inner"}), ("model", 'q"\\')], True, None)
def test_it_agrees_with_the_parser_of_the_servers(
    members: list[tuple[str, Any]], ascii_only: bool, indent: int | None
) -> None:
    body = written(members, ascii_only=ascii_only, indent=indent)
    parsed = from_json(body)
    if not isinstance(parsed.get("model"), str | None):
        with pytest.raises(WrongType):
            scan(body)
        return
    assert scan(body)[:3] == expected(parsed)


@given(st.binary(max_size=60) | st.text().map(str.encode))
def test_bytes_that_are_no_json_end_in_an_answer_or_one_of_its_errors(body: bytes) -> None:
    with suppress(NotJson, WrongType):
        scan(body)


@given(_MEMBERS, st.data())
def test_a_body_that_breaks_off_is_no_json(
    members: list[tuple[str, Any]], data: st.DataObject
) -> None:
    body = written(members, ascii_only=True, indent=None)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(NotJson):
        scan(body[:cut])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"model"',
        b'"model": "m"}',
        b"null",
        b"{}x",
        b"{,}",
        b'{"model" "m"}',
        b'{"model": "m",}',
        b'\xef\xbb\xbf{"model": "m"}',
        b'{"model": "\\ud800"}',
        b'{"model": "\xff"}',
        '{"model": "m"}'.encode("utf-16"),
    ],
)
def test_what_the_servers_refuse_to_parse_is_no_json(body: bytes) -> None:
    with pytest.raises(NotJson):
        scan(body)


def test_a_key_may_be_written_with_escapes() -> None:
    assert scan(rb'{"mod\u0065l": "\u006d\n"}').model == "m\n"


@pytest.mark.parametrize(
    ("value", "kind"),
    [("1", "a number"), ("true", "a boolean"), ("[]", "an array"), ("{}", "an object")],
)
def test_a_model_that_is_no_string_is_named_by_what_it_is(value: str, kind: str) -> None:
    with pytest.raises(WrongType, match=kind):
        scan(f'{{"model": {value}}}'.encode())


@pytest.mark.parametrize("depth", [1, 9, 10, 11, 100, MAX_DEPTH - 1])
def test_nesting_is_followed_as_deep_as_the_servers_follow_it(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    assert scan(f'{{"x": {nested}, "model": "m"}}'.encode()).model == "m"


def test_deeper_nesting_is_refused() -> None:
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    with pytest.raises(NotJson):
        scan(f'{{"x": {nested}}}'.encode())


def test_a_body_of_countless_keys_is_refused_at_once() -> None:
    with pytest.raises(NotJson):
        scan(b"{" + b'"a":1,' * 1_000_000 + b'"a":1}')


def conversation(*contents: str, system: str = "Be brief.") -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": system}] + [
        {"role": roles[i % 2], "content": content} for i, content in enumerate(contents)
    ]
    return json.dumps({"model": "m", "messages": messages}).encode()


def test_every_turn_of_a_conversation_has_the_same_head() -> None:
    first = scan(conversation("Who are you?")).prompt.head
    assert scan(conversation("Who are you?", "A plant.", "Which one?")).prompt.head == first


def test_conversations_that_begin_differently_have_different_heads() -> None:
    assert scan(conversation("One")).prompt.head != scan(conversation("Two")).prompt.head


def test_conversations_that_share_a_long_beginning_have_the_same_head() -> None:
    system = "You are a careful assistant. " * 40
    one, two = scan(conversation("One", system=system)), scan(conversation("Two", system=system))
    assert one.prompt.head == two.prompt.head
    assert len(one.prompt.head) == HEAD_BYTES


def test_the_head_of_a_text_prompt_is_its_beginning() -> None:
    body = json.dumps({"prompt": "Once upon a time " * 100, "model": "m"}).encode()
    assert scan(body).prompt.head.startswith(b'"Once upon')


def test_a_session_is_named_by_its_cache_key_before_its_user() -> None:
    assert scan(b'{"prompt_cache_key": "k", "user": "u"}').prompt.session == b"k"
    assert scan(b'{"user": "u"}').prompt.session == b"u"
    for none in (b'{"user": null}', b'{"user": ""}', b'{"user": 1}', b"{}"):
        assert scan(none).prompt.session == b""


def test_turns_of_a_conversation_share_their_blocks() -> None:
    first = scan(conversation("Who are you? " * 200)).prompt.blocks
    second = scan(conversation("Who are you? " * 200, "A plant.", "Which one?")).prompt.blocks
    assert len(first) >= 5
    assert second[: len(first)] == first
