"""acceptance 4.1: stop strings, the same in streams and plain answers whatever the tokens."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from skirret_server.testing import IM_END

CASES = [
    pytest.param(["ABCDEFGHIJ!"], "DEFGHIJ", "ABC", "DEFGHIJ", id="S1"),
    pytest.param(["AB", "CDE", "FGHIJ", "!"], "DEFGHIJ", "ABC", "DEFGHIJ", id="S2"),
    pytest.param(["abcDEF"], "DEFG", "abcDEF", IM_END, id="S4"),
    pytest.param(["xaby"], ["b", "a"], "x", "a", id="S7"),
    pytest.param(["abcd"], ["bcd", "c"], "ab", "c", id="S8"),
    pytest.param(["a", "b", "c", "d"], ["bcd", "c"], "ab", "c", id="S8-bytes"),
    pytest.param(["ab\n\ncd"], "\n\n", "ab", "\n\n", id="S16"),
    pytest.param(["ab\n", "\ncd"], ["\n\n", "THE END"], "ab", "\n\n", id="S16-split"),
]


@pytest.mark.parametrize(("pieces", "stop", "content", "matched"), CASES)
@pytest.mark.parametrize("n", [1, 2])
async def test_text_ends_before_the_stop_that_completes_first(
    saying: Any, pieces: list[str], stop: Any, content: str, matched: Any, n: int
) -> None:
    answer = await saying(*pieces).every_way(stop=stop, n=n)
    for choice in answer["choices"]:
        assert choice["message"]["content"] == content
        assert choice["finish_reason"] == "stop"
        assert choice["matched_stop"] == matched


async def test_no_delta_ever_holds_a_byte_of_the_stop(saying: Any, chat: Any) -> None:
    """S1"""
    server = saying(*"ABCDEFGHIJ!")
    events = await server.events("/v1/chat/completions", chat(stop="DEFGHIJ"))
    deltas = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == "ABC"
    assert not any("D" in delta for delta in deltas)


async def test_text_held_as_a_possible_stop_goes_out_when_the_length_ends_it(saying: Any) -> None:
    """S5"""
    answer = await saying("a", "b", "D", "E").every_way(stop="DEF", max_tokens=4)
    assert answer["choices"][0]["message"]["content"] == "abDE"
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_an_empty_list_of_stops_leaves_the_end_token_alone(saying: Any) -> None:
    """S10"""
    answer = await saying("ok", IM_END, "junk").every_way(stop=[])
    assert answer["choices"][0]["message"]["content"] == "ok"
    assert answer["choices"][0]["matched_stop"] == IM_END


@pytest.mark.parametrize("count", [5, 500_000])
async def test_too_many_stops_are_refused(saying: Any, chat: Any, count: int) -> None:
    """S11"""
    server = saying("ok")
    body = json.dumps(chat(stop=["a"] * count)).encode()
    started = time.process_time()
    response = await server.post("/v1/chat/completions", body)
    assert time.process_time() - started < 0.1
    assert response.status == 400
    assert response.json()["error"]["param"] == "stop"
    assert response.json()["error"]["code"] == "array_above_max_length"
    assert await server.is_alive()


async def test_the_chats_end_marker_is_no_text(saying: Any) -> None:
    """S13"""
    server = saying("Hi")
    assert (await server.every_way())["choices"][0]["message"]["content"] == "Hi"
    shown = await server.every_way(skip_special_tokens=False, no_stop_trim=True)
    assert shown["choices"][0]["message"]["content"] == "Hi<|im_end|>"


async def test_stops_are_searched_in_generated_text_alone(saying: Any, text: Any) -> None:
    """S14"""
    response = await saying("xEND").text(prompt="END", echo=True, stop="END")
    assert response.json()["choices"][0]["text"] == "ENDx"


async def test_a_kept_stop_stays_and_nothing_follows_it(saying: Any) -> None:
    answer = await saying("ab", "END", "cd").every_way(stop="END", no_stop_trim=True)
    assert answer["choices"][0]["message"]["content"] == "abEND"


async def test_a_stop_token_ends_the_text_before_itself(saying: Any) -> None:
    answer = await saying("a", "b", "c").every_way(stop_token_ids=[ord("b")])
    assert answer["choices"][0]["message"]["content"] == "a"
    assert answer["choices"][0]["matched_stop"] == ord("b")


async def test_a_matched_stop_ends_the_sequence_in_the_engine(saying: Any) -> None:
    server = saying("a", "b", script={"ends": None})
    answer = await server.every_way(stop="b", max_tokens=1000)
    assert answer["usage"]["completion_tokens"] == 2
    await server.until_idle()
    assert server.engine.aborted == 5  # plain, streamed, two choices, a line


async def test_stops_begin_to_count_after_min_tokens(saying: Any) -> None:
    answer = await saying("x", "x", "y", "x").every_way(stop="x", min_tokens=3)
    assert answer["choices"][0]["message"]["content"] == "xxy"


@pytest.mark.parametrize("stop", ["", ["a", ""], "x" * 257])
async def test_a_stop_must_be_1_to_256_characters(saying: Any, stop: Any) -> None:
    assert (await saying("ok").chat(stop=stop)).status == 400


@pytest.mark.parametrize(
    ("pieces", "more", "content", "matched"),
    [
        (["ab12", "3; c"], {"stop_regex": "[0-9]+;"}, "ab", "[0-9]+;"),
        (["ab12", "3; c"], {"stop_regex": ["x", "[0-9]+;"], "stop": "3"}, "ab12", "3"),
        (["前", "缀!"], {"stop_regex": "[一-龥]!"}, "前", "[一-龥]!"),
        (["ab1"], {"stop_regex": "[0-9]+;"}, "ab1", IM_END),
    ],
)
async def test_patterns_stop_as_strings_do(
    saying: Any, pieces: list[str], more: dict[str, Any], content: str, matched: Any
) -> None:
    (choice,) = (await saying(*pieces).every_way(**more))["choices"]
    assert (choice["message"]["content"], choice["matched_stop"]) == (content, matched)


@pytest.mark.parametrize("wrong", ["(", "^a", "a$", "ab|^c", "a*", r"\b", ["a"] * 5, "a" * 257])
async def test_a_pattern_that_cannot_be_searched_for_is_refused(
    saying: Any, chat: Any, wrong: Any
) -> None:
    answer = await saying("a").post("/v1/chat/completions", chat(stop_regex=wrong))
    assert answer.status == 400
    assert answer.json()["error"]["param"].startswith("stop_regex")
