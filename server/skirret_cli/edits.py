"""The edits a command makes to an InferenceModel, as merge patches."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def restart(now: datetime) -> dict[str, Any]:
    """New pods of the same revision's inputs."""
    return {"spec": {"restartedAt": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}}


def upgrade(model: Mapping[str, Any]) -> dict[str, Any]:
    """The next template revision; refused by the API server if somebody edited the model since."""
    revision = model["spec"].get("templateRevision", 0)
    return {
        "metadata": {"resourceVersion": model["metadata"]["resourceVersion"]},
        "spec": {"templateRevision": revision + 1},
    }
