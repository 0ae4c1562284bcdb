"""The fence: of two operators, only the holder of the Lease writes.

A holder that can't renew stops writing before another may take the Lease, because its own validity
is counted from before the renewal was sent, and ends a margin early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from skirret_api.parts import Object
from skirret_operator.kinds import LEASE
from skirret_operator.kube import Conflict, Kube, KubeError

NAME = "skirret-operator"
_MARGIN = 0.8  # of the Lease's time, that this process trusts it
_log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another operator holds the Lease, or it was not renewed in time; this one must end."""


class Lease:
    """Held from `acquire` until it is lost or released."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        identity: str,
        seconds: int,
        monotonic: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._identity = identity
        self._seconds = seconds
        self._monotonic = monotonic
        self._valid_until = float("-inf")
        self._live: Object | None = None

    def check(self) -> None:
        """Raises LeaseLost when a write is no longer ours to make."""
        if self._monotonic() >= self._valid_until:
            raise LeaseLost(f"the Lease {self._namespace}/{NAME} could not be renewed in time")

    async def acquire(self) -> None:
        """Waits until it is free, or until its holder has been silent for as long as it lasts.

        Silence is measured here: the clocks of two nodes need not agree. Raises KubeError.
        """
        seen: str | None = None
        since = self._monotonic()
        while True:
            self._live = await self._kube.get(LEASE, self._namespace, NAME)
            spec: Object = (self._live or {}).get("spec", {})
            if spec.get("renewTime") != seen:
                seen, since = spec.get("renewTime"), self._monotonic()
            silence = self._monotonic() - since
            mine = spec.get("holderIdentity") in (None, "", self._identity)
            if mine or silence > spec.get("leaseDurationSeconds", self._seconds):
                try:
                    await self._take()
                except Conflict:
                    continue
                return
            _log.info("the Lease is held by %s; waiting", spec["holderIdentity"])
            await asyncio.sleep(1)

    async def keep(self) -> None:
        """Renews until it is lost; raises LeaseLost then."""
        while True:
            await asyncio.sleep(self._seconds / 3)
            try:
                await self._renew()
            except KubeError as error:
                _log.warning("the Lease was not renewed: %s", error)
            self.check()

    async def release(self) -> None:
        """Lets the next one begin at once."""
        if self._live is not None:
            self._valid_until = float("-inf")
            free = {**self._live, "spec": {**self._live["spec"], "holderIdentity": ""}}
            await self._kube.replace(free)

    async def _renew(self) -> None:
        try:
            await self._take()
        except Conflict:
            # The answer to an earlier renewal may have been lost on its way.
            self._live = await self._kube.get(LEASE, self._namespace, NAME)
            holder = (self._live or {}).get("spec", {}).get("holderIdentity")
            if holder != self._identity:
                raise LeaseLost(f"the Lease {self._namespace}/{NAME} is {holder}'s") from None
            await self._take()

    async def _take(self) -> None:
        began = self._monotonic()
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._seconds,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        if self._live is None:
            metadata: Object = {"name": NAME, "namespace": self._namespace}
            fresh = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata}
            self._live = await self._kube.create({**fresh, "spec": spec})
        else:
            self._live = await self._kube.replace({**self._live, "spec": spec})
        self._valid_until = began + self._seconds * _MARGIN
