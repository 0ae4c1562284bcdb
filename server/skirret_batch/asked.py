"""The body of `POST /v1/batches`, checked field by field in the words OpenAI uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from skirret_api.errors import InvalidRequest
from skirret_api.openai import BATCH_ENDPOINTS
from skirret_batch.receive import check_expiry
from skirret_batch.record import endpoint_of, window_seconds

_REQUIRED = ("input_file_id", "endpoint", "completion_window")
_OPTIONAL = ("metadata", "output_expires_after")
_PAIRS, _KEY, _VALUE = 16, 64, 512
_NOT_JSON = (
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using "
    "your HTTP library correctly. The API expects a JSON object.)"
)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None
    output_expires_after: int | None  # seconds


def parse(data: bytes) -> BatchRequest:
    """Raises InvalidRequest."""
    try:
        body = from_json(data, allow_inf_nan=False)
    except ValueError:
        raise InvalidRequest(_NOT_JSON) from None
    if not isinstance(body, dict):
        raise InvalidRequest(_NOT_JSON)
    _check_names(body, (*_REQUIRED, *_OPTIONAL))
    file_id, endpoint, window = (_text(body, name) for name in _REQUIRED)
    known = endpoint_of(endpoint)
    if known is None:
        raise _invalid("endpoint", endpoint, "Supported values are", BATCH_ENDPOINTS)
    if window_seconds(window) is None:
        raise _invalid("completion_window", window, "Use a time up to 14 days, such as", ("24h",))
    return BatchRequest(file_id, known, window, _metadata(body), _expiry(body))


def _check_names(body: dict[str, Any], known: tuple[str, ...], within: str = "") -> None:
    for name in body:
        if name not in known:
            param = f"{within}{name[:64]}"
            raise InvalidRequest(
                f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter"
            )


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        raise InvalidRequest(
            f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
        )
    if not isinstance(value, str):
        raise _wrong_type(name, "a string", value)
    return value


def _metadata(body: dict[str, Any]) -> dict[str, str] | None:
    metadata = body.get("metadata")
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise _wrong_type("metadata", "an object", metadata)
    if len(metadata) > _PAIRS:
        raise InvalidRequest(
            f"Invalid 'metadata': too many properties. Expected at most {_PAIRS}, but got "
            f"{len(metadata)} instead.",
            param="metadata",
            code="object_above_max_properties",
        )
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise _wrong_type(f"metadata.{key[:_KEY]}", "a string", value)
        if len(key) > _KEY or len(value) > _VALUE:
            raise InvalidRequest(
                f"Invalid 'metadata': a key has at most {_KEY} characters, a value {_VALUE}.",
                param="metadata",
                code="string_above_max_length",
            )
    return metadata


def _expiry(body: dict[str, Any]) -> int | None:
    expiry = body.get("output_expires_after")
    if expiry is None:
        return None
    if not isinstance(expiry, dict):
        raise _wrong_type("output_expires_after", "an object", expiry)
    _check_names(expiry, ("anchor", "seconds"), "output_expires_after.")
    return check_expiry("output_expires_after", expiry.get("anchor"), expiry.get("seconds"))


def _wrong_type(param: str, expected: str, value: object) -> InvalidRequest:
    kinds = {
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        dict: "an object",
        list: "an array",
    }
    got = kinds.get(type(value), "null" if value is None else "a decimal")
    return InvalidRequest(
        f"Invalid type for '{param}': expected {expected}, but got {got} instead.",
        param=param,
        code="invalid_type",
    )


def _invalid(param: str, value: str, advice: str, values: tuple[str, ...]) -> InvalidRequest:
    shown = re.sub(r"[^ -~]", "?", value[:64])
    listed = ", ".join(f"'{each}'" for each in values)
    return InvalidRequest(
        f"Invalid value: '{shown}'. {advice}: {listed}.", param=param, code="invalid_value"
    )
