"""Attention over the paged KV cache: one interface, and an implementation for each machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skirret_server.load.errors import UnsupportedModel

if TYPE_CHECKING:
    from skirret_server.attention.interface import Attention
    from skirret_server.engine.pool import KvPool
    from skirret_server.model.description import Description


def backend(name: str, pool: KvPool, description: Description) -> Attention:
    """The implementation called `name`; imported here, so that none is needed by another."""
    if name in ("auto", "reference"):
        from skirret_server.attention.reference import Reference

        return Reference(pool, description)
    raise UnsupportedModel(f"attention backend {name} is not in this build; use reference")
