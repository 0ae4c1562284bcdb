"""Conditions: their time changes only when their status does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from skirret_api.parts import Object
from skirret_operator.reconcile.times import rfc3339

_LONGEST_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Aspect:
    """One condition, as decided now."""

    type: str
    holds: bool
    reason: str
    message: str = ""


def conditions(
    aspects: Iterable[Aspect], before: Iterable[Object], generation: int, now: float
) -> list[Object]:
    known = {condition["type"]: condition for condition in before}
    return [_condition(aspect, known.get(aspect.type), generation, now) for aspect in aspects]


def find(status: Object, type_: str) -> Object | None:
    """A condition of a status, if it is there."""
    return next((each for each in status.get("conditions", []) if each["type"] == type_), None)


def _condition(aspect: Aspect, before: Object | None, generation: int, now: float) -> Object:
    status = "True" if aspect.holds else "False"
    same = before is not None and before["status"] == status
    return {
        "type": aspect.type,
        "status": status,
        "reason": aspect.reason,
        "message": aspect.message[:_LONGEST_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before and same else rfc3339(now),
    }
