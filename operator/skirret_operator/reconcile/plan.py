"""What there is to do, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from skirret_api.parts import Object
from skirret_batch.record import Record


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why nothing more can be done until something outside changes."""

    reason: str
    message: str


def invalid(error: ValidationError) -> Blocked:
    """Admission would have refused this spec: it was stored under another release's rules."""
    fault = error.errors(include_input=False)[0]
    where = ".".join(str(part) for part in ("spec", *fault["loc"]))
    return Blocked("InvalidSpec", f"{where}: {fault['msg']}")


@dataclass(frozen=True, slots=True)
class Note:
    """An Event on the owner, for `kubectl describe`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps for one owner, in this order. An empty plan means: all is as it should be."""

    record: Record | None = None  # to be put into the store
    apply: tuple[Object, ...] = ()
    delete: tuple[Object, ...] = ()  # as they were seen; a newer one of the same name stays
    status: Object | None = None
    note: Note | None = None
    again: float | None = None  # seconds after which to look again, event or not

    @property
    def changes_anything(self) -> bool:
        return bool(self.record or self.apply or self.delete or self.status)
