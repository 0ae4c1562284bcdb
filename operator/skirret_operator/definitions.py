"""Applies the custom resource definitions: the chart's hook, before an install or upgrade."""

from __future__ import annotations

import asyncio
import logging
import time

from skirret_api.crd import definitions
from skirret_api.parts import Object
from skirret_operator.kinds import DEFINITION
from skirret_operator.kube import Kube, connect

_TIMEOUT = 60.0  # seconds
_log = logging.getLogger(__name__)


class NotEstablished(Exception):
    """The API server took the definition, but does not serve it."""


async def apply_definitions() -> None:
    """Returns when the API server serves them. Raises KubeError or NotEstablished."""
    async with await connect() as client:
        kube = Kube(client, time.time)
        for definition in definitions():
            await kube.apply(definition)
            await _established(kube, definition["metadata"]["name"])
            _log.info("%s is applied", definition["metadata"]["name"])


async def _established(kube: Kube, name: str) -> None:
    try:
        async with asyncio.timeout(_TIMEOUT):
            while not _is_served(await kube.get(DEFINITION, "", name)):
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise NotEstablished(
            f"{name} is not served {_TIMEOUT:.0f} s after it was applied"
        ) from None


def _is_served(live: Object | None) -> bool:
    conditions = (live or {}).get("status", {}).get("conditions", [])
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
