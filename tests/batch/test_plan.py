"""What an input may hold, and the order its lines are run in."""

from __future__ import annotations

import json
import random
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skirret_batch.plan import (
    Index,
    Keys,
    Plan,
    Reading,
    canonical,
    cut,
    decode_plan,
    first_model,
    parse_line,
)
from skirret_batch.testing import chat_line

ENDPOINT = "/v1/chat/completions"
MODELS: dict[str, str | None] = {"m": "ns/m", "alias": "ns/m", "other": "ns/o", "none": None}


def read(data: bytes, piece: int = 1 << 16, max_lines: int = 100) -> Reading:
    reading = Reading(ENDPOINT, max_lines, Keys(BytesIO(), canonical, 0.25))
    for start in range(0, len(data), piece):
        reading.feed(data[start : start + piece])
    reading.finish()
    return reading


def problems(data: bytes, **options: int) -> list[tuple[int | None, str]]:
    return [(error.line, error.code) for error in read(data, **options).errors(MODELS)]


def line(**changes: Any) -> bytes:
    request = {**json.loads(chat_line("a")), **changes}
    return json.dumps({k: v for k, v in request.items() if v is not ...}).encode() + b"\n"


GOOD = chat_line("a") + chat_line("b")


@pytest.mark.parametrize(
    "data",
    [
        GOOD,
        GOOD[:-1],
        GOOD + b"\n\n",
        b"\n \n" + GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        line(custom_id="a", extra={"ignored": 1}) + chat_line("b"),
        chat_line("a")
        + chat_line("b", "sep \u2028 nel \x85 ff \f").replace(rb"\u2028", b"\xe2\x80\xa8"),
        line(custom_id="a", url="/chat/completions") + chat_line("b"),
        chat_line("a") + chat_line("b", model="alias"),
        chat_line("a") + chat_line("b", "\ud800"),
        chat_line("a", temperature=5, stream=True, messages=7) + chat_line("b"),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_an_input_of_two_requests(data: bytes, piece: int) -> None:
    reading = read(data, piece)
    assert reading.errors(MODELS) == []
    assert len(reading.index) == 2
    for ordinal, custom_id in enumerate("ab"):
        where = reading.index[ordinal]
        request = parse_line(data[where.offset : where.offset + where.length])
        assert request is not None
        assert request["custom_id"] == custom_id


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", [(None, "empty_file")]),
        (b"\n \r\n\xef\xbb\xbf", [(3, "invalid_json_line")]),
        (b"\xef\xbb\xbf\n", [(None, "empty_file")]),
        (b"{\n" + chat_line("a"), [(1, "invalid_json_line")]),
        (chat_line("a") + b"[1]\n", [(2, "invalid_json_line")]),
        (chat_line("a") + b'"x"\n', [(2, "invalid_json_line")]),
        (chat_line("a") + b'{"a":NaN}\n', [(2, "invalid_json_line")]),
        (chat_line("a") + b'{"a":"\xff"}\n', [(2, "invalid_json_line")]),
        (chat_line("a") + b'{"a":"\\ud800\xed\xa0\x80"}\n', [(2, "invalid_json_line")]),
        (chat_line("a") + b'{"a":' + b"[" * 300 + b"]" * 300 + b"}\n", [(2, "invalid_json_line")]),
        (
            chat_line("a") + b'{"a":"\\ud800","b":' + b"[" * 300 + b"]" * 300 + b"}\n",
            [(2, "invalid_json_line")],
        ),
        (line(custom_id=...), [(1, "missing_required_parameter")]),
        (line(custom_id=7), [(1, "missing_required_parameter")]),
        (line(method=...), [(1, "missing_required_parameter")]),
        (line(url=None), [(1, "missing_required_parameter")]),
        (line(body=...), [(1, "missing_required_parameter")]),
        (line(body="x"), [(1, "missing_required_parameter")]),
        (line(method="GET"), [(1, "invalid_method")]),
        (
            line(url="/v1/embeddings") + line(custom_id="b", url="/v1/completions"),
            [(1, "url_mismatch"), (2, "url_mismatch")],
        ),
        (chat_line("a") + b"\n" + chat_line("a"), [(3, "duplicate_custom_id")]),
        (chat_line("a") + chat_line("b", model="other"), [(2, "mismatched_model")]),
        (chat_line("a", model="none"), [(1, "model_not_found")]),
        (
            chat_line("a", model="none") + chat_line("b") + chat_line("c", model="other"),
            [(1, "model_not_found"), (3, "mismatched_model")],
        ),
        (
            line(method="PUT", url="/x", custom_id=...),
            [(1, "missing_required_parameter"), (1, "invalid_method"), (1, "url_mismatch")],
        ),
    ],
)
def test_every_error_is_found_with_its_line(data: bytes, expected: list[tuple[int, str]]) -> None:
    assert problems(data) == expected
    assert problems(data, piece=3) == expected


def test_a_duplicate_names_the_first_use() -> None:
    errors = read(chat_line("a") + chat_line("a")).errors(MODELS)
    assert "line 1" in errors[0].message


def test_a_line_without_a_model_is_left_to_answer_for_itself() -> None:
    assert problems(chat_line("a", model=None) + chat_line("b", model=3)) == []


def test_a_line_too_many_fails_the_batch_and_costs_no_memory() -> None:
    reading = read(b"".join(chat_line(str(n)) for n in range(7)), max_lines=5)
    assert [(e.line, e.code) for e in reading.errors(MODELS)] == [(None, "too_many_tasks")]
    assert len(reading.index) == 5


def test_a_hundred_errors_are_listed_and_the_rest_counted() -> None:
    errors = read(b"{\n" * 250 + b"[]\n", max_lines=1000).errors(MODELS)
    assert [error.line for error in errors[:100]] == list(range(1, 101))
    assert (errors[100].code, len(errors)) == ("more_errors", 101)
    assert "151" in errors[100].message


def test_what_is_wrong_with_the_whole_input_is_listed_first() -> None:
    errors = read(b"{\n" * 250, max_lines=200).errors(MODELS)
    assert [(error.line, error.code) for error in errors[:2]] == [
        (None, "too_many_tasks"),
        (1, "invalid_json_line"),
    ]


def test_lines_of_a_wrong_model_are_counted_too() -> None:
    data = chat_line("a") + b"".join(chat_line(str(n), model="other") for n in range(150))
    errors = read(data, max_lines=1000).errors(MODELS)
    assert len(errors) == 101
    assert "50" in errors[100].message


def arranged(keys: Keys) -> list[int]:
    ordered = keys.sorted()
    return keys.order(keys.groups(ordered), ordered)


TEXTS = st.lists(st.text(st.sampled_from("ab\x00é"), max_size=700), min_size=1, max_size=20)


@given(TEXTS)
def test_the_order_is_that_of_the_prompts_bytes(texts: list[str]) -> None:
    keys = Keys(BytesIO(), canonical, 0.25)
    for text in texts:
        keys.add({"prompt": text})
    assert [texts[n].encode() for n in keys.sorted()] == sorted(text.encode() for text in texts)


def test_of_equal_prompts_the_longest_work_is_first() -> None:
    keys = Keys(BytesIO(), canonical, 0.25)
    for tokens in (5, 50, None, 500):
        keys.add({"prompt": "x" * 1000, "max_tokens": tokens})
    assert keys.sorted() == [3, 1, 2, 0]


def test_the_last_lines_go_by_the_length_of_their_work() -> None:
    keys = Keys(BytesIO(), canonical, 0.25)
    for number in range(40):
        keys.add({"prompt": f"{number:02}", "max_tokens": 1 + number % 10})
    order = arranged(keys)
    assert order[:30] == list(range(30))
    assert [1 + number % 10 for number in order[30:]] == list(range(10, 0, -1))


def test_the_tokens_that_prompts_share_are_predicted() -> None:
    keys = Keys(BytesIO(), canonical, 0.25)
    for number in (1, 0, 2):
        keys.add({"prompt": f"{number % 2}" + "x" * 399 + "abc"[number]})
    assert keys.shared_tokens(keys.sorted()) == 100


def test_the_first_model_is_found_in_the_head_of_an_input() -> None:
    assert first_model(b"\xef\xbb\xbf\nno json\n" + chat_line("a") + b'{"cut') == "m"
    assert first_model(b"[]\n") is None


def shuffled(systems: int, each: int) -> tuple[list[int], Keys]:
    """Lines of so many long system prompts; which one each line has."""
    requests = [(n % systems, n) for n in range(systems * each)]
    random.Random(1).shuffle(requests)
    keys = Keys(BytesIO(), canonical, 0.25)
    for system, user in requests:
        keys.add(
            {
                "messages": [
                    {"role": "system", "content": f"You are number {system}. " * 30},
                    {"role": "user", "content": f"{user}"},
                ]
            }
        )
    return [system for system, _ in requests], keys


def test_shuffled_system_prompts_come_together() -> None:
    systems, keys = shuffled(20, 10)
    ordered = [systems[n] for n in keys.sorted()]
    assert sum(a != b for a, b in zip(ordered, ordered[1:], strict=False)) == 19


def test_lines_that_begin_alike_are_one_group() -> None:
    systems, keys = shuffled(20, 10)
    groups = keys.groups(keys.sorted())
    assert 0 not in groups
    assert len(set(zip(systems, groups, strict=True))) == len(set(groups)) == 20


def test_a_few_groups_are_run_beside_each_other() -> None:
    systems, keys = shuffled(20, 10)
    order = arranged(keys)
    assert all(len({systems[n] for n in order[at : at + 8]}) == 8 for at in range(0, 80, 8))
    assert len({systems[n] for n in order[:80]}) == 8


def test_what_all_lines_share_makes_no_group() -> None:
    keys = Keys(BytesIO(), canonical, 0.25)
    for number in range(10):
        keys.add({"prompt": "the same for everybody " * 40 + f"{number} " * 80})
    assert list(keys.groups(keys.sorted())) == [0] * 10


@given(TEXTS)
def test_every_line_is_run_once_whatever_its_group(texts: list[str]) -> None:
    keys = Keys(BytesIO(), canonical, 0.25)
    for text in texts:
        keys.add({"prompt": text})
    assert sorted(arranged(keys)) == list(range(len(texts)))


@pytest.mark.parametrize("body", [{}, {"messages": 3}, {"messages": [1, None, {"content": [{}]}]}])
def test_any_body_can_be_ordered(body: dict[str, Any]) -> None:
    assert isinstance(canonical(body), bytes)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 400))
def test_shards_hold_every_line_once(total: int, lines: int, tokens: int) -> None:
    reading = read(b"".join(chat_line(str(n), "x" * n) for n in range(total)))
    order = list(range(total))
    random.Random(total).shuffle(order)
    ends = cut(order, reading.index, lines=lines, tokens=tokens)
    plan = decode_plan(Plan("m", order, ends, groups=range(7, 7 + total)).encode())
    assert list(plan.groups) == list(range(7, 7 + total))
    shards = [list(plan.shard(number)) for number in range(len(plan.ends))]
    assert [ordinal for shard in shards for ordinal in shard] == order
    assert all(0 < len(shard) <= lines for shard in shards)


def test_a_plan_without_groups_has_none() -> None:
    assert list(decode_plan(Plan("m", [1, 0], [2]).encode()).groups) == [0, 0]


def test_an_index_is_24_bytes_a_line() -> None:
    reading = read(GOOD)
    assert len(reading.index.packed) == 48
    assert Index(bytes(reading.index.packed))[1] == reading.index[1]
