"""Tool calls in the formats of three families, however the text is cut into pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skirret_server.text.tool_calls import (
    HERMES,
    LLAMA,
    MISTRAL,
    Argued,
    Called,
    Said,
    ToolFormat,
    ToolParser,
    format_of,
)


def parsed(form: ToolFormat, *pieces: str) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the calls with their arguments."""
    parser = ToolParser(form)
    events: list[Any] = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish()
    text, calls = "", []
    for event in events:
        if isinstance(event, Said):
            text += event.text
        elif isinstance(event, Called):
            calls.append((event.name, ""))
        elif isinstance(event, Argued):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return text, calls


ONE = '{"name": "f", "arguments": {"a": [1, "}"], "b": "\\"{"}}'
TWO = '{"name": "g", "arguments": {}}'
ARGUMENTS = '{"a": [1, "}"], "b": "\\"{"}'
BOTH = [("f", ARGUMENTS), ("g", "{}")]

CASES: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>", "", BOTH[:1]),
    (HERMES, f"Hm.<tool_call>\n{ONE}\n</tool_call>\n<tool_call>{TWO}</tool_call>\n", "Hm.", BOTH),
    (HERMES, "no < call", "no < call", []),
    (HERMES, "<tool_call>nonsense</tool_call>after", "<tool_call>nonsense</tool_call>after", []),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "",
     [("f", '{"a": 1}')]),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    (HERMES, f"<tool_call>\n{ONE}", "", BOTH[:1]),
    (HERMES, '<tool_call>\n{"na', '<tool_call>\n{"na', []),
    (MISTRAL, f"[TOOL_CALLS] [{ONE}, {TWO}]", "", BOTH),
    (MISTRAL, f"[TOOL_CALLS][{TWO}]", "", BOTH[1:]),
    (MISTRAL, "[TOOL] no", "[TOOL] no", []),
    (LLAMA, ONE.replace("arguments", "parameters"), "", BOTH[:1]),
    (LLAMA, f"<|python_tag|>{ONE}; {TWO}", "", BOTH),
    (LLAMA, "It is {1}.", "It is {1}.", []),
    (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "said", "calls"), CASES)
def test_calls_are_found_in_the_whole_text(
    form: ToolFormat, text: str, said: str, calls: list[tuple[str, str]]
) -> None:
    assert parsed(form, text) == (said, calls)


@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 120), max_size=12))
def test_calls_are_the_same_however_the_text_comes(
    case: tuple[ToolFormat, str, str, list[tuple[str, str]]], cuts: list[int]
) -> None:
    form, text, said, calls = case
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert parsed(form, *pieces) == (said, calls)


def test_text_before_a_call_goes_out_at_once() -> None:
    parser = ToolParser(HERMES)
    assert parser.feed("Let me see <tool") == [Said("Let me see ")]
    assert parser.feed(" me") == [Said("<tool me")]


def test_arguments_go_out_as_they_come() -> None:
    parser = ToolParser(HERMES)
    assert parser.feed('<tool_call>{"name": "f", "arguments": {"a"') == [
        Called("f"),
        Argued('{"a"'),
    ]
    assert parser.feed(": 1}") == [Argued(": 1}")]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("... <tool_call> ...", HERMES),
        ("{{ '[TOOL_CALLS]' }}", MISTRAL),
        ('{"name": function name, "parameters": dictionary}', LLAMA),
        ("{{ messages }}", HERMES),
    ],
)
def test_the_format_is_the_one_the_template_teaches(template: str, form: ToolFormat) -> None:
    assert format_of(template) is form
