"""Log-probabilities in the two shapes that OpenAI's clients read."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from skirret_server.api.wire import finite
from skirret_server.core import Logprob, TokenId
from skirret_server.text.choice import Entry
from skirret_server.text.tokenizer import Tokenizer


def chat_logprobs(entries: Sequence[Entry], tokenizer: Tokenizer) -> dict[str, Any]:
    return {"content": [_chat_entry(e.logprob, tokenizer) for e in entries], "refusal": None}


def completion_logprobs(
    entries: Sequence[tuple[int, Logprob | None, TokenId]], top: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """`entries` are offsets into prompt and text, logprobs (None for the first token), tokens."""
    return {
        "tokens": [token_name(token, tokenizer) for _, _, token in entries],
        "token_logprobs": [finite(lp.logprob) if lp else None for _, lp, _ in entries],
        "top_logprobs": [_named(lp, tokenizer) if lp else None for _, lp, _ in entries]
        if top
        else None,
        "text_offset": [offset for offset, _, _ in entries],
    }


def token_name(token: TokenId, tokenizer: Tokenizer) -> str:
    """Its text; or its bytes, spelled, when they are no text by themselves."""
    data = tokenizer.bytes_of(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def prompt_offsets(ids: Sequence[TokenId], text: str, tokenizer: Tokenizer) -> list[int]:
    """Where each token of a prompt begins in its text."""
    utf8 = getincrementaldecoder("utf-8")(errors="replace")
    offsets, joined = [], ""
    for token in ids:
        offsets.append(len(joined))
        joined += utf8.decode(tokenizer.bytes_of(token))
    # What the tokenizer put before the text (BOS, a space) is no part of it.
    shift = len(joined) - len(text) if joined.endswith(text) else 0
    return [max(0, offset - shift) for offset in offsets]


def _chat_entry(logprob: Logprob, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        **_chat_token(logprob.token, logprob.logprob, tokenizer),
        "top_logprobs": [_chat_token(token, value, tokenizer) for token, value in logprob.top],
    }


def _chat_token(token: TokenId, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.bytes_of(token)
    return {
        "token": data.decode(errors="replace"),
        "logprob": finite(logprob),
        "bytes": list(data),
    }


def _named(logprob: Logprob, tokenizer: Tokenizer) -> dict[str, float]:
    """The likeliest and the drawn one; of two tokens with one name the likelier stays."""
    named: dict[str, float] = {}
    for token, value in (*logprob.top, (logprob.token, logprob.logprob)):
        name = token_name(token, tokenizer)
        named[name] = max(finite(value), named.get(name, finite(value)))
    return named
