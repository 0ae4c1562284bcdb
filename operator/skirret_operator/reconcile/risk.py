"""Whether a batch may not be done when its window closes."""

from __future__ import annotations

from dataclasses import dataclass

from skirret_batch.record import Record

_LATE = 0.1  # of the window: so little left and not at work, it is at risk
_RELIEF = 0.9  # of the time left, under which an estimate must fall again: it moves all the time


@dataclass(frozen=True, slots=True)
class Risk:
    holds: bool
    within: float | None = None  # seconds after which it holds if nothing happens


def expiry(record: Record, is_at_work: bool, was_at_risk: bool, now: float) -> Risk:
    batch = record.batch
    if batch.status not in ("validating", "in_progress"):
        return Risk(False)
    left = batch.expires_at - now
    needed = record.progress.eta_seconds if is_at_work else None
    if needed is None:
        needed = _LATE * (batch.expires_at - batch.created_at)
    if needed > left * (_RELIEF if was_at_risk else 1.0):
        return Risk(True)
    return Risk(False, left - needed + 1)
