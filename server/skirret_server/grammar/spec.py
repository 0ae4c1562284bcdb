"""What is asked to be enforced."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["regex", "ebnf", "json_schema", "json_object", "choice", "tools", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Spec:
    """`source` is JSON: the schema, a string, a list of strings, or how to call which tools."""

    kind: Kind
    source: str

    @classmethod
    def of(cls, kind: Kind, source: Any = None) -> Spec:
        """Equal sources make equal specs; the order of keys is part of a schema."""
        return cls(kind, json.dumps(source))
