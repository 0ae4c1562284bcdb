"""The lines of output and error files, and how an answer becomes one. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from pydantic_core import from_json

from skirret_batch.completions import Answer

Unfinished = Literal["batch_expired", "batch_cancelled"]

_REASONS: dict[Unfinished, str] = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed: the batch was cancelled.",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What one line came to: a whole line of the output file, or of the error file."""

    ordinal: int  # of the input line, blank ones not counted, from 0
    ok: bool
    line: bytes  # ends in \n
    usage: Usage = Usage()


def answered(batch_id: str, ordinal: int, custom_id: str, answer: Answer) -> Result:
    """The result of an answer whose body is a JSON object. Raises ValueError for any other."""
    body = from_json(answer.body, allow_inf_nan=False)
    if not isinstance(body, dict):
        raise ValueError("the answer is not a JSON object")
    ok = 200 <= answer.status < 300
    request_id = answer.headers.get("x-request-id") or f"req_{_digest(batch_id, ordinal)}"
    response = {"status_code": answer.status, "request_id": request_id, "body": body}
    return Result(
        ordinal,
        ok,
        _line(batch_id, ordinal, custom_id, response, None),
        _usage(body) if ok else Usage(),
    )


def unfinished(batch_id: str, ordinal: int, custom_id: str, code: Unfinished) -> bytes:
    """The line of a request that was never executed, or not to its end."""
    error = {"code": code, "message": _REASONS[code]}
    return _line(batch_id, ordinal, custom_id, None, error)


def refused(
    batch_id: str, ordinal: int, custom_id: str, status: int, error: dict[str, Any]
) -> Result:
    """The result of a request that we answer ourselves, with this error envelope."""
    answer = Answer(status, json.dumps(error).encode())
    return answered(batch_id, ordinal, custom_id, answer)


def _line(batch_id: str, ordinal: int, custom_id: str, response: object, error: object) -> bytes:
    value = {
        "id": f"batch_req_{_digest(batch_id, ordinal)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    # ASCII alone: no separator of lines but our own, and lone surrogates stay escapes.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _digest(batch_id: str, ordinal: int) -> str:
    """The same for one line whoever writes it, and another for every line."""
    return sha256(f"{batch_id}:{ordinal}".encode()).hexdigest()[:28]


def _usage(body: dict[str, Any]) -> Usage:
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(
        _tokens(usage.get("prompt_tokens")),
        _tokens(cached),
        _tokens(usage.get("completion_tokens")),
    )


def _tokens(value: object) -> int:
    return value if isinstance(value, int) else 0
