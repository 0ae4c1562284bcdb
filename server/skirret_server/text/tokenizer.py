"""One model's tokenizer: text to tokens, tokens to bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from skirret_server.core import TokenId
from skirret_server.text.control import VEIL, ControlTokens
from skirret_server.text.token_bytes import token_bytes

_LONG = 2048  # characters


class NoTokenizer(Exception):
    """The model's folder holds no tokenizer that can be read."""


class Tokenizer:
    """Encodes prompts and rendered chats; knows the true bytes of every token."""

    def __init__(self, source: str, config: dict[str, Any]) -> None:
        """`source` and `config`: the texts of tokenizer.json and tokenizer_config.json."""
        self._source = source
        self._tokens = tokenizers.Tokenizer.from_str(source)
        self._tokens.no_padding()
        self._tokens.no_truncation()
        added = self._tokens.get_added_tokens_decoder()
        self.named_tokens = _named_tokens(config)
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.control = ControlTokens(added[index].content for index in self.special_ids)
        self._bytes = token_bytes(
            self._tokens.get_vocab(with_added_tokens=True),
            {index: token.content for index, token in added.items()},
            self._tokens.decoder.__getstate__() if self._tokens.decoder else b'{"type":"none"}',
        )
        self._bos = self.id_of(self.named_tokens.get("bos_token", ""))
        self._puts_bos = self._bos is not None and self._tokens.encode("").ids[:1] == [self._bos]
        self._wants_bos = self._puts_bos or config.get("add_bos_token") is True

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Raises NoTokenizer or UnsupportedTokenizer."""
        try:
            source = (folder / "tokenizer.json").read_text(encoding="utf-8")
            return cls(source, read_config(folder))
        except FileNotFoundError:
            raise NoTokenizer(f"{folder} holds no tokenizer.json") from None

    def encode(self, text: str) -> list[TokenId]:
        """A prompt as the model was trained to see it: control tokens parsed, one BOS at most."""
        ids = _ids(self._tokens, text, add_special_tokens=True)
        if self._bos is None or not self._wants_bos:
            return ids
        if ids[:1] != [self._bos]:
            return [self._bos, *ids]
        return ids[1:] if self._puts_bos and ids[1:2] == [self._bos] else ids

    def encode_chat(self, text: str) -> list[TokenId]:
        """A rendered chat: the template writes every control token itself, BOS too."""
        if VEIL not in text:
            return _ids(self._tokens, text)
        (encoding,) = self._tokens.encode_batch([text], add_special_tokens=False)
        return self._encode_veiled(text, zip(encoding.ids, encoding.offsets, strict=True))

    def encode_inner(self, text: str) -> list[TokenId]:
        """Text in the middle of another, in which nothing is a control token."""
        return self._encode_plain(text, is_first=False)

    def decode(self, ids: Sequence[TokenId], *, skip_special_tokens: bool = False) -> str:
        text: str = self._tokens.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def bytes_of(self, token: TokenId) -> bytes:
        """Empty for ids that pad the model's vocabulary."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def join(self, ids: Iterable[TokenId]) -> bytes:
        return b"".join(map(self.bytes_of, ids))

    def id_of(self, token: str) -> TokenId | None:
        found: TokenId | None = self._tokens.token_to_id(token)
        return found

    @property
    def all_bytes(self) -> Sequence[bytes]:
        """Of every token, by id."""
        return self._bytes

    def _encode_veiled(
        self, text: str, tokens: Iterable[tuple[TokenId, tuple[int, int]]]
    ) -> list[TokenId]:
        ids: list[TokenId] = []
        start = 0
        for token, (begin, end) in tokens:
            if token in self.special_ids:
                ids += self._encode_plain(text[start:begin], is_first=start == 0)
                ids.append(token)
                start = end
        return ids + self._encode_plain(text[start:], is_first=start == 0)

    def _encode_plain(self, text: str, *, is_first: bool) -> list[TokenId]:
        return _ids(self._plain_first if is_first else self._plain_inner, self.control.unveil(text))

    @cached_property
    def _plain_first(self) -> tokenizers.Tokenizer:
        return _without_special_tokens(self._source)

    @cached_property
    def _plain_inner(self) -> tokenizers.Tokenizer:
        """Puts no space before its text, as Metaspace does at the beginning of a whole one."""
        whole = '"prepend_scheme":"first"'
        source = self._source.replace('"prepend_scheme": "first"', whole)
        if whole not in source:
            return self._plain_first
        return _without_special_tokens(source.replace(whole, '"prepend_scheme":"never"'))


def read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; empty when there is none."""
    try:
        text = (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    config: dict[str, Any] = json.loads(text)
    return config


def _ids(
    tokens: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool = False
) -> list[TokenId]:
    if len(text) < _LONG:
        ids: list[TokenId] = tokens.encode(text, add_special_tokens=add_special_tokens).ids
        return ids
    # Unlike `encode`, these let other threads run meanwhile.
    return list(tokens.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)


def _without_special_tokens(source: str) -> tokenizers.Tokenizer:
    tokens = tokenizers.Tokenizer.from_str(source)
    tokens.no_padding()
    tokens.no_truncation()
    tokens.encode_special_tokens = True
    return tokens


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like, as chat templates know them."""
    named = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            named[name] = content
    return named
