"""Which web pages may call this server from their visitors' browsers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# What a page's script may read beside the body.
_SHOWN = "x-request-id, x-ignored-params, x-unenforced, openai-processing-ms, retry-after"
_REMEMBERED = "86400"  # seconds a browser need not ask again


@dataclass(frozen=True, slots=True)
class Cors:
    origins: tuple[str, ...] = ()  # "*": every one; none: no page may

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        return method == "OPTIONS" and self._allows(headers)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """For any answer to a request with these headers."""
        if not self._allows(headers):
            return {}
        every = "*" in self.origins
        return {
            "access-control-allow-origin": "*" if every else headers["origin"],
            "access-control-expose-headers": _SHOWN,
            **({} if every else {"vary": "origin"}),
        }

    def preflight(self, methods: str, headers: Mapping[str, str]) -> dict[str, str]:
        """For the answer to what a browser asks before it sends the request itself."""
        return {
            "access-control-allow-methods": methods,
            "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
            "access-control-max-age": _REMEMBERED,
        }

    def _allows(self, headers: Mapping[str, str]) -> bool:
        origin = headers.get("origin")
        return origin is not None and ("*" in self.origins or origin in self.origins)
