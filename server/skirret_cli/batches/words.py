"""A batch, told to a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from skirret_api.openai import TERMINAL
from skirret_cli.batches.lines import Examined

Json = dict[str, Any]

_BAR = 24  # characters
_ERRORS = 10  # told one by one


def has_ended(batch: Json) -> bool:
    return batch["status"] in TERMINAL


def is_whole(batch: Json) -> bool:
    """Every line was answered."""
    return bool(batch["status"] == "completed") and not batch["request_counts"]["failed"]


def bar(batch: Json, width: int) -> str:
    """How far it is, in one line."""
    counts = batch["request_counts"]
    total, done = counts["total"], counts["completed"] + counts["failed"]
    words = [batch["status"]]
    if total:
        filled = done * _BAR // total
        words += [
            f"[{'#' * filled}{'-' * (_BAR - filled)}]",
            f"{100 * done // total}%",
            f"{done:,}/{total:,}",
        ]
    words += _speed(batch)
    if counts["failed"]:
        words.append(f"{counts['failed']:,} failed")
    return "  ".join(words)[:width]


def ending(batch: Json) -> str:
    """What came of it."""
    counts = batch["request_counts"]
    missing = counts["total"] - counts["completed"] - counts["failed"]
    words = [f"{counts['completed']:,} of {counts['total']:,} lines answered"]
    if counts["failed"]:
        words.append(f"{counts['failed']:,} failed")
    if missing > 0:
        words.append(f"{missing:,} not run")
    if tokens := (batch.get("usage") or {}).get("output_tokens"):
        words.append(f"{tokens:,} tokens generated")
    took = span(_ended_at(batch) - batch["created_at"])
    return "\n".join([f"{batch['status']}: {', '.join(words)}, in {took}", *faults(batch)])


def valid(examined: Examined) -> str:
    """What a file without errors holds."""
    about = "about " if examined.is_estimated else ""
    took = "" if examined.seconds is None else f", to be answered in about {span(examined.seconds)}"
    return (
        f"{examined.requests:,} lines to {examined.endpoint} for "
        f"{', '.join(examined.models) or 'no model'}, prompts of {about}{examined.tokens:,} tokens"
        f"{took}"
    )


def faults(batch: Json) -> list[str]:
    """Why the input was refused."""
    errors = (batch.get("errors") or {}).get("data") or []
    told = [fault(error) for error in errors[:_ERRORS]]
    more = len(errors) - len(told)
    return [*told, f"and {more} more: skirret batch show {batch['id']} --json"] if more else told


def fault(error: Json) -> str:
    where = f"line {error['line']}: " if error.get("line") else ""
    return f"{where}{error['message']} ({error['code']})"


def details(batch: Json, now: float) -> str:
    counts, usage = batch["request_counts"], batch.get("usage") or {}
    done = counts["completed"] + counts["failed"]
    rows = [
        ("id", batch["id"]),
        ("status", batch["status"]),
        ("model", batch.get("model")),
        ("lines", f"{done:,} of {counts['total']:,} done, {counts['failed']:,} failed"),
        ("speed", ", ".join(_speed(batch))),
        ("tokens", _tokens(usage)),
        ("created", _time(batch["created_at"], now)),
        ("expires", None if has_ended(batch) else _time(batch["expires_at"], now)),
        ("ended", _time(_ended_at(batch), now) if has_ended(batch) else None),
        ("input", batch["input_file_id"]),
        ("answers", batch.get("output_file_id")),
        ("errors", batch.get("error_file_id")),
        *((f"  {key}", value) for key, value in (batch.get("metadata") or {}).items()),
    ]
    told = [(name, value) for name, value in rows if value]
    width = max(len(name) for name, _ in told)
    return "\n".join([*(f"{name:{width}}  {value}" for name, value in told), *faults(batch)])


def table(batches: Iterable[Json], now: float) -> str:
    rows: list[Sequence[str]] = [("ID", "STATUS", "MODEL", "DONE", "FAILED", "ETA", "AGE")]
    for batch in batches:
        counts = batch["request_counts"]
        eta = (batch.get("x_progress") or {}).get("eta_seconds")
        rows.append(
            (
                batch["id"],
                batch["status"],
                batch.get("model") or "",
                f"{counts['completed'] + counts['failed']}/{counts['total']}",
                str(counts["failed"]),
                span(eta) if eta is not None and not has_ended(batch) else "",
                span(now - batch["created_at"]),
            )
        )
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lines whose cells stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def span(seconds: float) -> str:
    """As `3m20s`: the two largest units."""
    left = max(0, round(seconds))
    units = [("d", left // 86400), ("h", left // 3600 % 24), ("m", left // 60 % 60)]
    told = [f"{count}{unit}" for unit, count in [*units, ("s", left % 60)] if count]
    return "".join(told[:2]) or "0s"


def _speed(batch: Json) -> list[str]:
    progress = batch.get("x_progress") or {}
    words = []
    if rate := progress.get("tokens_per_second"):
        words.append(f"{rate:,.0f} tok/s")
    if (eta := progress.get("eta_seconds")) is not None and not has_ended(batch):
        words.append(f"ETA {span(eta)}")
    return words


def _tokens(usage: Json) -> str | None:
    if not usage:
        return None
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    return (
        f"{usage['input_tokens']:,} of prompts ({cached:,} cached), "
        f"{usage['output_tokens']:,} generated"
    )


def _ended_at(batch: Json) -> int:
    at: int | None = batch.get(f"{batch['status']}_at")
    return batch["created_at"] if at is None else at


def _time(at: float, now: float) -> str:
    told = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{told} ({span(now - at)} ago)" if at <= now else f"{told} (in {span(at - now)})"
