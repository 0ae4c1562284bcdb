"""When two values of JSON are the same: 1 is 1.0, and true is not 1."""

from __future__ import annotations

import json
from typing import Any


def identity(value: Any) -> str:
    """The same text for the same values."""
    return json.dumps(plain(value), sort_keys=True)


def same(one: Any, other: Any) -> bool:
    return identity(one) == identity(other)


def plain(value: Any) -> Any:
    """The value with whole numbers as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value
