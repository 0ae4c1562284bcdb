"""Tokens' true bytes, and one BOS, for both families of tokenizers."""

from __future__ import annotations

import json
import time
from threading import Thread
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from skirret_server.testing import tiny_model
from skirret_server.text.choice import incomplete_tail
from skirret_server.text.token_bytes import UnsupportedTokenizer, byte_letters, token_bytes
from skirret_server.text.tokenizer import Tokenizer as Ours


def sentence_piece(scheme: str = "first", adds_bos: bool = True) -> Ours:
    """A tiny Llama-2-like tokenizer: Metaspace, byte fallback, BOS in front."""
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz<>|/s"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁he", "he", "▁t"]
    vocabulary = {
        token: index
        for index, token in enumerate(
            dict.fromkeys(["<unk>", "<s>", "</s>", *bytes_, *letters, *words])
        )
    }
    merges = [("h", "e"), ("▁", "he"), ("▁", "t")]
    tokens = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokens.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokens.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokens.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>")])
    if adds_bos:
        tokens.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", vocabulary["<s>"])]
        )
    return Ours(tokens.to_str(), {"bos_token": "<s>", "eos_token": {"content": "</s>"}})


def test_byte_fallback_tokens_are_single_bytes() -> None:
    tokenizer = sentence_piece()
    ids = tokenizer.encode("he 😀")
    assert tokenizer.join(ids[1:]) == " he 😀".encode()
    assert [tokenizer.bytes_of(token) for token in ids[-4:]] == [
        b"\xf0",
        b"\x9f",
        b"\x98",
        b"\x80",
    ]


def test_a_prompt_gets_one_bos_whether_or_not_it_brings_its_own() -> None:
    tokenizer = sentence_piece()
    bos = tokenizer.id_of("<s>")
    for text in ("he", "<s>he"):
        assert tokenizer.encode(text).count(bos or 0) == 1


def test_a_bos_that_the_configuration_wants_is_put_in_front() -> None:
    plain = sentence_piece(adds_bos=False)
    assert plain.encode("he")[0] != plain.id_of("<s>")
    wanting = Ours(plain._source, {"bos_token": "<s>", "add_bos_token": True})
    assert wanting.encode("he")[0] == wanting.id_of("<s>")


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_text_after_a_control_token_is_encoded_as_in_the_whole(scheme: Any) -> None:
    tokenizer = sentence_piece(scheme)
    veiled = tokenizer.control.veil("he </s> he")
    ids = tokenizer.encode_chat(f"<s>t{veiled}</s>the")
    calm = tokenizer.encode_chat("<s>t")
    assert ids[: len(calm)] == calm
    assert ids[-len(tokenizer.encode_chat("</s>the")) :] == tokenizer.encode_chat("</s>the")
    assert ids.count(tokenizer.id_of("</s>") or 0) == 1


def test_named_tokens_are_read_from_both_spellings() -> None:
    assert sentence_piece().named_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_every_byte_has_a_letter_and_none_shares_it() -> None:
    assert len(set(byte_letters().values())) == 256


def test_an_unknown_decoder_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedTokenizer, match="WordPiece"):
        token_bytes({"a": 0}, {}, json.dumps({"type": "WordPiece"}).encode())


def test_a_gap_in_the_vocabulary_has_no_bytes() -> None:
    spelled = token_bytes({"a": 0, "b": 2}, {}, json.dumps({"type": "ByteLevel"}).encode())
    assert spelled == [b"a", b"", b"b"]


@pytest.mark.parametrize(
    ("data", "tail"),
    [
        (b"", b""),
        (b"abc", b""),
        ("é".encode(), b""),
        (b"a\xc3", b"\xc3"),
        (b"\xf0\x9f\x98", b"\xf0\x9f\x98"),
        (b"\x80\x80", b""),
        (b"a\xff", b""),
    ],
)
def test_the_tail_is_what_begins_a_character_and_does_not_end_it(data: bytes, tail: bytes) -> None:
    assert incomplete_tail(data) == tail


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Ours:
    return Ours.load(tiny_model(tmp_path_factory.mktemp("tiny")))


def test_other_threads_go_on_while_a_long_text_is_encoded(bytewise: Ours) -> None:
    thread = Thread(target=bytewise.encode, args=("the ring and the king é😀\n" * 5000,))
    thread.start()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 5


@pytest.mark.parametrize("size", [10, 5000])
def test_a_text_has_the_same_tokens_however_long_it_is(bytewise: Ours, size: int) -> None:
    text = "the ring <|im_start|> é😀\n" * (size // 10)
    assert bytewise.join(bytewise.encode(text)).decode() == text
    assert bytewise.encode(text) == bytewise._tokens.encode(text).ids
