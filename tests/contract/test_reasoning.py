"""S17 and its kind: what a model thinks is no part of what it says."""

from __future__ import annotations

from typing import Any

import pytest

from skirret_server.testing import CHAT_TEMPLATE, END_THINK, IM_END, THINK
from skirret_server.text.template import ChatTemplate


def message(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["choices"][0]["message"]
    return found


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stop_is_looked_for_in_the_answer_alone(saying: Any, n: int) -> None:
    """S17"""
    answer = await saying(THINK, "9.8", END_THINK, "ok").every_way(stop="9.8", n=n)
    for choice in answer["choices"]:
        assert choice["message"]["content"] == "ok"
        assert choice["message"]["reasoning_content"] == "9.8"
        assert choice["matched_stop"] == IM_END
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3 * n}


async def test_a_stop_in_the_answer_still_ends_it(saying: Any) -> None:
    answer = await saying(THINK, "9.8", END_THINK, "a9", ".8b").every_way(stop="9.8")
    assert message(answer)["content"] == "a"
    assert answer["choices"][0]["matched_stop"] == "9.8"


async def test_thinking_cut_by_the_length_is_all_there_is(saying: Any) -> None:
    answer = await saying(THINK, "a", b"\xf0\x9f", b"\x98\x80").every_way(max_tokens=3)
    assert message(answer)["reasoning_content"] == "a�"
    assert message(answer)["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_characters_are_whole_on_both_sides(saying: Any) -> None:
    pieces = [bytes([byte]) for byte in "漢".encode()]
    answer = await saying(THINK, *pieces, END_THINK, *pieces).every_way()
    assert message(answer)["reasoning_content"] == message(answer)["content"] == "漢"


async def test_white_space_at_the_marks_belongs_to_them(saying: Any) -> None:
    answer = await saying(THINK, "\n", "so", END_THINK, "\n", "\n", " ok").every_way()
    assert message(answer)["reasoning_content"] == "so"
    assert message(answer)["content"] == " ok"


async def test_logprobs_are_of_the_answers_tokens(saying: Any) -> None:
    answer = await saying(THINK, "so", END_THINK, "ok").every_way(logprobs=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["ok"]


async def test_a_template_may_open_the_thinking_itself(saying: Any) -> None:
    server = saying("so", END_THINK, "ok")
    server.template = ChatTemplate(CHAT_TEMPLATE + "<think>\n", {})
    server.lifecycle.serve(server.served)
    answer = await server.every_way()
    assert (message(answer)["reasoning_content"], message(answer)["content"]) == ("so", "ok")


async def test_calls_come_after_the_thinking(saying: Any) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    answer = await saying(THINK, call, END_THINK, *call).every_way(tools=[tool], max_tokens=200)
    assert message(answer)["reasoning_content"] == call
    assert len(message(answer)["tool_calls"]) == 1
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_that_never_thinks_is_all_content(saying: Any) -> None:
    answer = await saying("o", THINK, "k").every_way()
    assert message(answer)["content"] == "ok"
    assert "reasoning_content" not in message(answer)


@pytest.mark.parametrize(
    ("settings", "extra"),
    [({}, {"separate_reasoning": False}), ({"separates_reasoning": False}, {})],
)
async def test_it_can_be_left_together(
    saying: Any, settings: dict[str, Any], extra: dict[str, Any]
) -> None:
    server = saying(THINK, "so", END_THINK, "ok", settings=settings)
    answer = await server.every_way(skip_special_tokens=False, **extra)
    assert message(answer)["content"] == "<think>so</think>ok"


async def test_a_grammar_leaves_no_room_for_thinking(real: Any) -> None:
    real.template = ChatTemplate(CHAT_TEMPLATE + "<think>", {})
    real.lifecycle.serve(real.served)
    assert message(await real.every_way(regex="ok"))["content"] == "ok"
