"""Says in words what an InferenceModel or BatchJob waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any


def explain(resource: Mapping[str, Any], now: datetime) -> str:
    metadata = resource["metadata"]
    name = f"{resource['kind']} {metadata['namespace']}/{metadata['name']}"
    conditions = resource.get("status", {}).get("conditions", [])
    if not conditions:
        return f"{name} has no status yet: does an operator run and watch this namespace?"
    lines = [name, "", *_table(_row(condition, now) for condition in conditions)]
    seen = max(condition.get("observedGeneration", 0) for condition in conditions)
    if seen < metadata.get("generation", 0):
        lines += ["", "The latest edit is not in this yet: the operator has still to see it."]
    return "\n".join(lines)


def _row(condition: Mapping[str, Any], now: datetime) -> Sequence[str]:
    return (
        condition["type"],
        condition["status"],
        condition.get("reason", ""),
        _age(condition["lastTransitionTime"], now),
        condition.get("message", ""),
    )


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    table = [("CONDITION", "STATUS", "REASON", "FOR", "MESSAGE"), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _age(since: str, now: datetime) -> str:
    """As kubectl writes ages: one unit, rounded down."""
    seconds = int((now - datetime.fromisoformat(since)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"
