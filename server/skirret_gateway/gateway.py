"""The gateway as a whole: its parts wired together, its life from the first byte to the last."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from skirret_api.internal import GATEWAY_PORT
from skirret_api.meta import RoutingStrategy
from skirret_batch.receive import Limits
from skirret_gateway import endpoints_file
from skirret_gateway.access import AccessLog
from skirret_gateway.caller import Tenants
from skirret_gateway.downstream import Door, DoorLimits
from skirret_gateway.endpoints_file import BadFile
from skirret_gateway.fleet import Fleet
from skirret_gateway.follower import Follower
from skirret_gateway.forward import Forward, ForwardSettings
from skirret_gateway.hold import HoldLimits
from skirret_gateway.ledger import Ledger, day_of
from skirret_gateway.limits import Share
from skirret_gateway.meter import Meter
from skirret_gateway.metrics import Metrics
from skirret_gateway.models import Models
from skirret_gateway.routes import Routes, State
from skirret_gateway.table import DEFAULT_STRATEGY, Table
from skirret_gateway.upstream import Pool, PoolSettings
from skirret_gateway.usage import Usage

if TYPE_CHECKING:  # imported where they are used: half a second that not every gateway needs
    from skirret_gateway.kube import Access
    from skirret_gateway.stores import Stores

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """How a gateway is started. Either `endpoints` or `kubernetes` says where the servers are."""

    host: str = "0.0.0.0"
    port: int = GATEWAY_PORT
    endpoints: Path | None = None
    kubernetes: Access | None = None
    namespaces: tuple[str, ...] = ()
    release_namespace: str = ""
    tenants: Path | None = None
    keys: Path | None = None  # without it nobody needs one
    access: TextIO | None = None  # where a line for each request goes
    unit: str = ""  # this gateway's name among those that share the limits: its pod's
    files: Limits = Limits()
    strategy: RoutingStrategy = DEFAULT_STRATEGY
    drain_timeout: float = 30.0  # seconds that answers may go on after the end was asked for
    hold_timeout: float = 300.0
    watch_seconds: float = 60.0
    look_every: float = 1.0  # seconds between two looks at files that may have changed
    hold: HoldLimits = HoldLimits()
    pool: PoolSettings = PoolSettings()
    forward: ForwardSettings = ForwardSettings()
    door: DoorLimits = DoorLimits()


class Gateway:
    """One running gateway; made and used in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        loop = asyncio.get_running_loop()
        clock = time.monotonic
        self._tenants = Tenants(settings.tenants, settings.release_namespace, settings.keys)
        self.fleet = Fleet(
            limits=settings.hold,
            hold_timeout=settings.hold_timeout,
            clock=clock,
            later=loop.call_later,
        )
        self._follower = Follower(self.fleet.knowledge, self._tenants.token)
        self._pool = Pool(settings.pool)
        self._stores: Stores | None = None
        self._ledger: Ledger | None = None
        if settings.tenants:
            from skirret_gateway.stores import Stores

            self._stores = Stores(lambda: self._tenants.by_namespace, self._models, settings.files)
        self._state = State(started_at=time.time())
        metrics = Metrics(clock)
        self._usage = Usage(day_of(time.time()))
        self._meter = Meter(self._usage, metrics, clock)
        routes = Routes(
            fleet=self.fleet,
            forward=Forward(
                self.fleet,
                self._pool,
                self._tenants.token,
                self._meter,
                metrics,
                settings.forward,
            ),
            tenants=self._tenants,
            files=self._stores.app if self._stores else None,
            meter=self._meter,
            metrics=metrics,
            state=self._state,
        )
        self._access = AccessLog(settings.access) if settings.access else None
        if self._access is None:
            self._door = Door(routes, settings.door)
        else:
            self._door = Door(routes, settings.door, self._access.answered)

    @property
    def port(self) -> int:
        """Where it listens, once it is started."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def has_read_usage(self) -> bool:
        """Whether quotas hold what was used before it was started."""
        return self._ledger is None or self._ledger.has_read

    async def start(self) -> None:
        """Raises OSError or ValueError when a file or the port can't be used."""
        settings = self._settings
        self._tenants.read()
        work = [self._sweep, _every(settings.look_every, self._tenants.refresh)]
        if settings.endpoints is not None:
            follow = _EndpointsFile(settings.endpoints, settings.strategy, self._route_by)
            follow.read()
            work.append(_every(settings.look_every, follow.refresh))
        if settings.kubernetes is not None:
            work.append(partial(self._watch, settings.kubernetes))
        if self._stores is not None and settings.keys is not None:
            self._ledger = Ledger(
                self._usage,
                self._stores.of,
                lambda: self._tenants.key_namespaces & self._tenants.by_namespace.keys(),
                settings.unit,
            )
            work.append(self._ledger.run)
        self._work = asyncio.gather(*[begin() for begin in work])
        self._server = await asyncio.get_running_loop().create_server(
            self._door.connection, settings.host, settings.port, backlog=2048
        )
        log.info("listening on %s:%d", settings.host, self.port)

    async def run(self, end: asyncio.Event) -> None:
        """Until the end is asked for, or one of its own tasks fails: then it raises."""
        await self.start()
        # What is here now stays. Each full collection would look through all of it, and nothing
        # moves for those 50 ms.
        gc.collect()
        gc.freeze()
        asked = asyncio.ensure_future(end.wait())
        either: set[asyncio.Future[Any]] = {asked, self._work}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        await self.stop()

    async def stop(self) -> None:
        """Takes nothing new, refuses who waits, lets answers end for a while.

        Raises what one of its own tasks failed with.
        """
        log.info("draining")
        self._state.is_draining = True
        self._server.close()
        self.fleet.close()
        await self._door.close(self._settings.drain_timeout)
        self._pool.close()
        await self._follower.close()
        if self._ledger:
            await self._ledger.close()
        if self._stores:
            await self._stores.close()
        if self._access:
            self._access.flush()
        self._work.cancel()
        with suppress(asyncio.CancelledError):
            await self._work

    def _models(self, namespace: str) -> Models:
        return Models(self.fleet, self._pool, self._tenants.token, namespace)

    async def _watch(self, access: Access) -> None:
        from skirret_gateway import kube
        from skirret_gateway.cluster import Cluster, Units

        settings = self._settings
        api = kube.Api(access)
        try:
            await Cluster(
                api,
                settings.namespaces,
                settings.strategy,
                self._route_by,
                watch_seconds=settings.watch_seconds,
                units=Units(settings.release_namespace, self._units) if settings.keys else None,
            ).run()
        finally:
            await api.close()

    def _route_by(self, table: Table) -> None:
        self.fleet.update(table)
        self._follower.update(table)

    def _units(self, names: Sequence[str]) -> None:
        """These gateways share the limits now; this one may not be among them yet."""
        every = sorted({*names, self._settings.unit})
        share = Share(every.index(self._settings.unit), len(every))
        if share != self._meter.share:
            log.info("this is one of %d gateways that share the limits", share.units)
            self._meter.share = share

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._door.sweep(loop.time())
            self._pool.sweep()
            if self._access:
                self._access.flush()


class _EndpointsFile:
    """Read again when it changes; what was read before stays in force while it is bad."""

    def __init__(
        self, path: Path, strategy: RoutingStrategy, update: Callable[[Table], None]
    ) -> None:
        self._path = path
        self._strategy = strategy
        self._update = update
        self._stamp: object = None

    def read(self) -> None:
        """Raises OSError or BadFile."""
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp
            self._update(endpoints_file.read(self._path, self._strategy))

    def refresh(self) -> None:
        try:
            self.read()
        except (OSError, BadFile) as error:
            log.error("the servers stay as they were: %s", error)


def _every(seconds: float, look: Callable[[], None]) -> Callable[[], Coroutine[None, None, None]]:
    async def again() -> None:
        while True:
            await asyncio.sleep(seconds)
            look()

    return again
