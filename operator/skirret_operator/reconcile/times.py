"""Seconds since the epoch, and how Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(epoch: float) -> str:
    return datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def sooner(*times: float | None) -> float | None:
    """The earliest of those there are."""
    return min((each for each in times if each is not None), default=None)


def in_words(seconds: float) -> str:
    """As kubectl writes ages: 45s, 3m20s, 2h5m, 3d4h."""
    whole = max(0, round(seconds))
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            return _both(whole // size, unit, whole % size // small, small_unit)
    return _both(whole // 60, "m", whole % 60, "s") if whole >= 60 else f"{whole}s"


def _both(much: int, unit: str, little: int, small_unit: str) -> str:
    return f"{much}{unit}{little}{small_unit}" if little else f"{much}{unit}"
