"""The models and servers of a cluster, followed through lists and watches.

A watch lasts a minute; then everything is listed again and replaces what was known. So whatever a
watch may miss, silently or not, is known a minute later. While the API server doesn't answer, what
was known last stays in force.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from random import random
from typing import Any, Generic, TypeVar, get_args

from skirret_api import meta
from skirret_api.internal import GATEWAY_SERVICE, SERVER_PORT
from skirret_api.meta import RoutingStrategy
from skirret_gateway.kube import Api, ApiFailed, Expired, Object
from skirret_gateway.table import Model, ModelId, Replica, Slice, Table, build

log = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_SECONDS = 60
_PAUSES = (0.2, 0.5, 1, 2, 5, 10, 30)  # seconds between tries, each a half more or less at random
_LASTED = 5.0  # seconds after which a watch is taken to have worked


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind in a namespace, and how its objects are read."""

    path: str
    parse: Callable[[Object], T]
    selector: str = ""


@dataclass(eq=False)
class Informer(Generic[T]):
    """Keeps what there is of one resource."""

    api: Api
    resource: Resource[T]
    changed: Callable[[], None]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    watch_seconds: float = WATCH_SECONDS
    is_synced: bool = False
    _known: dict[str, T] = field(default_factory=dict)

    @property
    def objects(self) -> Iterable[T]:
        return self._known.values()

    async def run(self) -> None:
        """Forever: lists, watches for a while, lists again. Failures only make it wait longer.

        Only a watch that lasted ends the waiting: a list that works before a watch that doesn't
        would else be asked for five times a second.
        """
        failures = 0
        while True:
            began = self.clock()
            error: ApiFailed | None = None
            try:
                await self._watch(await self._list())
            except Expired as expired:
                log.info("listing again: %s", expired)
                error = expired
            except ApiFailed as failed:
                log.warning("%s", failed)
                error = failed
            if self.clock() - began >= min(_LASTED, self.watch_seconds / 2):
                failures = 0
                if error is None or isinstance(error, Expired):
                    continue
            pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
            await self.sleep(pause * (0.5 + random()))
            failures += 1

    async def _list(self) -> str:
        items, version = await self.api.list(self.resource.path, self.resource.selector)
        known: dict[str, T] = {}
        for item in items:
            self._put(known, item)
        is_news = not self.is_synced or known != self._known
        self._known, self.is_synced = known, True
        if is_news:
            self.changed()
        return version

    async def _watch(self, version: str) -> None:
        resource = self.resource
        async with aclosing(
            self.api.watch(resource.path, resource.selector, version, self.watch_seconds)
        ) as events:
            async for kind, item in events:
                if kind == "DELETED":
                    self._known.pop(item["metadata"]["name"], None)
                elif kind in ("ADDED", "MODIFIED"):
                    self._put(self._known, item)
                self.changed()

    def _put(self, known: dict[str, T], item: Object) -> None:
        name = item["metadata"]["name"]
        try:
            known[name] = self.resource.parse(item)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            log.error("%s: %s makes no sense: %r", self.resource.path, name, error)


@dataclass(frozen=True, slots=True)
class Units:
    """Where the gateways themselves are listed, and who is told their names."""

    namespace: str
    update: Callable[[Sequence[str]], None]


class Cluster:
    """The models and servers of some namespaces, as one routing table after another."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        strategy: RoutingStrategy,
        update: Callable[[Table], None],
        *,
        watch_seconds: float = WATCH_SECONDS,
        units: Units | None = None,
    ) -> None:
        self._update = update
        self._is_due = False
        follow = partial(Informer, api, changed=self._changed, watch_seconds=watch_seconds)
        read = partial(model, strategy=strategy)
        self._models = [follow(Resource(_models_path(name), read)) for name in namespaces]
        self._slices = [
            follow(Resource(_slices_path(name), endpoints, _SELECTOR)) for name in namespaces
        ]

        self._units = units
        self._gateways: list[Informer[tuple[str, ...]]] = []
        if units is not None:
            here = Resource(_slices_path(units.namespace), unit_names, _GATEWAYS)
            self._gateways.append(
                Informer(api, here, self._units_changed, watch_seconds=watch_seconds)
            )

    @property
    def _informers(self) -> list[Informer[Any]]:
        return [*self._models, *self._slices]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in [*self._informers, *self._gateways]:
                group.create_task(informer.run())

    def _changed(self) -> None:
        """One table for all the changes of a moment, none before everything was listed once."""
        if not self._is_due and all(informer.is_synced for informer in self._informers):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _units_changed(self) -> None:
        assert self._units is not None
        self._units.update(
            [name for at in self._gateways for known in at.objects for name in known]
        )

    def _publish(self) -> None:
        self._is_due = False
        models = (known for informer in self._models for known in informer.objects)
        slices = (known for informer in self._slices for known in informer.objects)
        self._update(build(models, slices))


_GATEWAYS = f"kubernetes.io/service-name={GATEWAY_SERVICE}"
_SELECTOR = f"{meta.MODEL_LABEL},{meta.MANAGED_BY}={meta.MANAGED_BY_SKIRRET}"


def _models_path(namespace: str) -> str:
    return f"/apis/{meta.API_VERSION}/namespaces/{namespace}/inferencemodels"


def _slices_path(namespace: str) -> str:
    return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def model(item: Object, strategy: RoutingStrategy) -> Model:
    """`strategy` is for a model that leaves it to the gateway."""
    metadata = item["metadata"]
    routing = item["spec"].get("routing", {})
    asked = routing.get("strategy")
    return Model(
        ModelId(metadata["namespace"], metadata["name"]),
        created=int(datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()),
        claims=tuple(item["spec"].get("servedNames") or [metadata["name"]]),
        strategy=asked if asked in get_args(RoutingStrategy) else strategy,
        split=tuple((part["model"], part["weight"]) for part in routing.get("split") or ()),
        is_leaving="deletionTimestamp" in metadata,
    )


def endpoints(item: Object) -> Slice:
    """The servers of a slice that are ready and not terminating."""
    metadata = item["metadata"]
    port = _port(item.get("ports") or [])
    return Slice(
        ModelId(metadata["namespace"], metadata["labels"][meta.MODEL_LABEL]),
        tuple(
            Replica(endpoint["addresses"][0], port)
            for endpoint in item.get("endpoints") or []
            if _is_ready(endpoint.get("conditions") or {})
        ),
    )


def unit_names(item: Object) -> tuple[str, ...]:
    """The pods of a slice that are ready and not terminating."""
    return tuple(
        (endpoint.get("targetRef") or {}).get("name") or endpoint["addresses"][0]
        for endpoint in item.get("endpoints") or []
        if _is_ready(endpoint.get("conditions") or {})
    )


def _is_ready(conditions: Object) -> bool:
    """An absent `ready` means ready (discovery/v1)."""
    return conditions.get("ready") is not False and conditions.get("terminating") is not True


def _port(ports: list[Object]) -> int:
    """The one named http, or else the first."""
    named = [port["port"] for port in ports if port.get("name") == "http" and port.get("port")]
    given = named or [port["port"] for port in ports if port.get("port")]
    return int(given[0]) if given else SERVER_PORT
