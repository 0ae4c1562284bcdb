"""acceptance 4.2: text is bytes until it is whole."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.parametrize(
    "pieces",
    [
        ["😀é漢"],
        ["😀", "é", "漢"],
        [bytes([byte]) for byte in "😀é漢".encode()],
        ["😀é漢".encode()[:2], "😀é漢".encode()[2:5], "😀é漢".encode()[5:]],
    ],
)
async def test_characters_are_whole_in_every_delta(
    saying: Any, chat: Any, pieces: list[Any]
) -> None:
    """U1"""
    server = saying(*pieces)
    assert (await server.every_way())["choices"][0]["message"]["content"] == "😀é漢"
    events = await server.events("/v1/chat/completions", chat())
    assert "�" not in json.dumps(events, ensure_ascii=False)


async def test_a_character_that_the_prompt_began_is_finished_and_the_prompt_not_repeated(
    saying: Any,
) -> None:
    """U2"""
    response = await saying(b"\x98\x80B").text(prompt=[0x41, 0xF0, 0x9F])
    assert response.json()["choices"][0]["text"] == "😀B"


async def test_echo_and_text_join_over_a_character_that_the_prompt_began(saying: Any) -> None:
    """U2"""
    response = await saying(b"\x98\x80B").text(prompt=[0x41, 0xF0, 0x9F], echo=True)
    assert response.json()["choices"][0]["text"] == "A😀B"


async def test_a_character_cut_by_the_length_is_one_replacement(saying: Any) -> None:
    """U4"""
    answer = await saying(b"\xf0\x9f", b"\x98\x80").every_way(max_tokens=1, logprobs=True)
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "�"
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["content"][0]["bytes"] == [240, 159]


async def test_the_bytes_of_logprobs_join_to_the_content(saying: Any) -> None:
    """U5"""
    answer = await saying(b"\xf0\x9f", b"\x98", b"\x80").every_way(logprobs=True, top_logprobs=2)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "😀"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


async def test_invalid_utf8_becomes_a_replacement_character(saying: Any) -> None:
    """U7"""
    answer = await saying(b"\xc3", b"\x28").every_way()
    assert answer["choices"][0]["message"]["content"] == "�("


async def test_line_separators_of_unicode_split_no_event(saying: Any, chat: Any) -> None:
    """U8"""
    server = saying("a b\x85c d")
    assert (await server.every_way())["choices"][0]["message"]["content"] == "a b\x85c d"
    response = await server.post("/v1/chat/completions", chat(stream=True))
    lines = response.body.decode().splitlines()
    assert all(line == "" or line.startswith("data: ") for line in lines)


async def test_state_of_aborted_streams_goes_away(saying: Any, chat: Any) -> None:
    """U10, U11"""
    server = saying("x", script={"ends": None})
    for _ in range(200):
        async with server.call("/v1/chat/completions", chat(stream=True, max_tokens=1000)) as call:
            async for _piece in call.pieces():
                break
    await server.until_idle()
    assert server.engine.aborted == 200
