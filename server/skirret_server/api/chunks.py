"""What chat and text chunks have in common: one frame, written once, around each choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skirret_server.api import wire
from skirret_server.api.generation import Usage


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that are the same in every chunk and in the whole answer."""

    id: str
    created: int
    model: str
    service_tier: str | None = None

    def fields(self, kind: str) -> dict[str, Any]:
        tier = {} if self.service_tier is None else {"service_tier": self.service_tier}
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            **tier,
        }


class Frame:
    """Writes chunks as events. `usage`: none, null until the end, or its state at each chunk."""

    def __init__(self, head: Head, kind: str, usage: Usage, *, wanted: bool, always: bool) -> None:
        self._before = "data: " + wire.to_json(head.fields(kind)).decode()[:-1] + ',"choices":['
        self._after = ',"usage":null}\n\n' if wanted else "}\n\n"
        self._usage = usage
        self._wanted = wanted
        self._always = always and wanted

    def choice(self, choice: str) -> bytes:
        """`choice`: the JSON of the one choice in this chunk."""
        if self._always:
            return self._with_usage(choice)
        return f"{self._before}{choice}]{self._after}".encode()

    def last(self) -> bytes:
        """The usage chunk, when one is wanted."""
        return self._with_usage("") if self._wanted else b""

    def _with_usage(self, choice: str) -> bytes:
        usage = wire.to_json(usage_fields(self._usage)).decode()
        return f'{self._before}{choice}],"usage":{usage}}}\n\n'.encode()


def usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
