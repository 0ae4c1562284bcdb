"""What is asked to be enforced."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["regex", "json_schema", "json_object", "choice"]


@dataclass(frozen=True, slots=True)
class Spec:
    """`source` is JSON: the schema, or a string, or a list of strings."""

    kind: Kind
    source: str

    @classmethod
    def of(cls, kind: Kind, source: Any = None) -> Spec:
        """Equal sources make equal specs; the order of keys is part of a schema."""
        return cls(kind, json.dumps(source))
