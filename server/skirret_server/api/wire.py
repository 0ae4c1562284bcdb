"""JSON and SSE as bytes: compact, UTF-8, with nothing in it that splits a line."""

from __future__ import annotations

import json
import math
import secrets
from json.encoder import encode_basestring
from typing import Any

from skirret_api.errors import ApiError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

# Legal inside JSON strings, but line ends to some readers of event streams.
_LINE_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def to_json(value: Any) -> bytes:
    return _one_line(_encode(value)).encode()


def string(text: str) -> str:
    """A JSON string."""
    return _one_line(encode_basestring(text))


def event(value: Any) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    return event(error.body())


def new_id(prefix: str, separator: str = "-") -> str:
    return f"{prefix}{separator}{secrets.token_hex(16)}"


def finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is OpenAI's word for it."""
    return logprob if math.isfinite(logprob) else -9999.0


def _one_line(text: str) -> str:
    return text if text.isascii() else text.translate(_LINE_ENDS)
