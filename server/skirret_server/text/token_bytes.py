"""The bytes that each token of a vocabulary stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedTokenizer(Exception):
    """The tokenizer's decoder is of a kind whose bytes are not known here."""


def token_bytes(
    vocabulary: Mapping[str, int], added: Mapping[int, str], decoder: bytes
) -> list[bytes]:
    """The bytes of every id, empty where the vocabulary has a gap.

    `decoder` is the JSON of the tokenizer's decoder. Raises UnsupportedTokenizer.
    """
    spell = _speller(list(_kinds(json.loads(decoder))))
    found = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        found[index] = added[index].encode() if index in added else spell(token)
    return found


def byte_letters() -> dict[int, str]:
    """The letter byte-level BPE writes for each byte: itself where it can be printed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _kinds(decoder: Any) -> Iterator[str]:
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _kinds(inner)
    else:
        yield decoder["type"]


def _speller(kinds: list[str]) -> Callable[[str], bytes]:
    if "ByteLevel" in kinds:
        return _byte_level()
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentence_piece
    raise UnsupportedTokenizer(
        f"the tokenizer's decoder {'+'.join(kinds)} is not supported: "
        "it is neither byte-level BPE nor SentencePiece"
    )


def _byte_level() -> Callable[[str], bytes]:
    table = {ord(letter): byte for byte, letter in byte_letters().items()}

    def spell(token: str) -> bytes:
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:  # a token that was added as plain text
            return token.encode()

    return spell


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
