"""What the Kubernetes API server knows of models and their servers, listed and watched.

A watch lasts a minute; then everything is listed again and replaces what was known. So whatever a
watch may miss, silently or not, is known a minute later. While the API server doesn't answer, what
was known last stays in force.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from random import random
from typing import Any, Generic, TypeVar, get_args

import aiohttp

from skirret_api import meta
from skirret_api.internal import SERVER_PORT
from skirret_api.model import served_names
from skirret_gateway.table import Model, ModelId, Replica, Slice, Strategy, Table, build

log = logging.getLogger(__name__)

Object = dict[str, Any]
T = TypeVar("T")

WATCH_SECONDS = 60
_GRACE_SECONDS = 10  # after which a watch that should have ended is taken for dead
_PAGE = 500
_LONGEST_PAUSE = 5.0  # seconds between tries
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiFailed(Exception):
    """The API server refused or broke off; the message says what and why."""


class Expired(ApiFailed):
    """The version to go on from is forgotten: list again."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is, and how to be let in."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None


def in_cluster(environment: Mapping[str, str]) -> Access:
    """As a pod is told. Raises LookupError outside of one."""
    host = environment["KUBERNETES_SERVICE_HOST"]
    port = environment["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    return Access(f"https://{host}:{port}", _ACCOUNT / "token", _ACCOUNT / "ca.crt")


class Api:
    """Lists and watches, as plain dictionaries."""

    def __init__(self, access: Access) -> None:
        self._access = access
        tls = ssl.create_default_context(cafile=access.ca_file) if access.ca_file else True
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0), read_bufsize=1 << 20
        )

    async def list(self, path: str, selector: str) -> tuple[list[Object], str]:
        """All objects, and the version to watch from. Raises ApiFailed."""
        items: list[Object] = []
        query = {"limit": str(_PAGE), "labelSelector": selector}
        while True:
            async with self._get(path, query, timeout=30) as response:
                page = await response.json()
            items += page.get("items") or []
            query["continue"] = page["metadata"].get("continue") or ""
            if not query["continue"]:
                return items, page["metadata"]["resourceVersion"]

    async def watch(
        self, path: str, selector: str, version: str, seconds: float
    ) -> AsyncGenerator[tuple[str, Object]]:
        """Changes since `version` as they come, for so long. Raises ApiFailed, Expired."""
        query = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        async with self._get(path, query, timeout=seconds + _GRACE_SECONDS) as response:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _failure(path, event["object"].get("code"), event["object"])
                yield event["type"], event["object"]

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def _get(
        self, path: str, query: Mapping[str, str], *, timeout: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.get(
                self._access.url + path,
                params=query,
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=5),
            ) as response:
                if response.status != 200:
                    raise _failure(path, response.status, await response.json(content_type=None))
                yield response
        except TimeoutError as error:
            raise ApiFailed(f"{path}: nothing came in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiFailed(f"{path}: {error}") from error

    def _headers(self) -> dict[str, str]:
        if self._access.token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._access.token_file.read_text().strip()}"}


def _failure(path: str, code: int | None, status: Any) -> ApiFailed:
    message = status.get("message") if isinstance(status, dict) else status
    kind = Expired if code == 410 else ApiFailed
    return kind(f"{path}: {code}: {message}")


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
    watch_seconds: float = WATCH_SECONDS
    is_synced: bool = False
    _known: dict[str, T] = field(default_factory=dict)

    @property
    def objects(self) -> Iterable[T]:
        return self._known.values()

    async def run(self) -> None:
        """Forever: lists, watches for a while, lists again. Failures only make it wait longer."""
        failures = 0
        while True:
            try:
                version = await self._list()
                failures = 0
                await self._watch(version)
            except Expired as error:
                log.info("listing again: %s", error)
            except ApiFailed as error:
                log.warning("%s", error)
                await self.sleep(min(0.2 * 2**failures, _LONGEST_PAUSE) * (0.5 + random()))
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


class Cluster:
    """The models and servers of some namespaces, as one routing table after another."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        strategy: Strategy,
        update: Callable[[Table], None],
        *,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        self._update = update
        self._is_due = False
        models = partial(model, strategy=strategy)
        self._models = [
            Informer(
                api, Resource(_models_path(ns), models), self._changed, watch_seconds=watch_seconds
            )
            for ns in namespaces
        ]
        self._slices = [
            Informer(
                api, Resource(_slices_path(ns), endpoints, _SELECTOR), self._changed,
                watch_seconds=watch_seconds,
            )
            for ns in namespaces
        ]  # fmt: skip

    @property
    def _informers(self) -> list[Informer[Any]]:
        return [*self._models, *self._slices]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())

    def _changed(self) -> None:
        """One table for all the changes of a moment, none before everything was listed once."""
        if not self._is_due and all(informer.is_synced for informer in self._informers):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._is_due = False
        models = (known for informer in self._models for known in informer.objects)
        slices = (known for informer in self._slices for known in informer.objects)
        self._update(build(models, slices))


_SELECTOR = f"{meta.MODEL_LABEL},{meta.MANAGED_BY}={meta.MANAGED_BY_SKIRRET}"


def _models_path(namespace: str) -> str:
    return f"/apis/{meta.API_VERSION}/namespaces/{namespace}/inferencemodels"


def _slices_path(namespace: str) -> str:
    return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def model(item: Object, strategy: Strategy) -> Model:
    """`strategy` is for a model that leaves it to the gateway."""
    metadata = item["metadata"]
    asked = item["spec"].get("routing", {}).get("strategy")
    return Model(
        ModelId(metadata["namespace"], metadata["name"]),
        created=int(datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()),
        claims=tuple(served_names(item)),
        strategy=asked if asked in get_args(Strategy) else strategy,
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


def _is_ready(conditions: Object) -> bool:
    """An absent `ready` means ready (discovery/v1)."""
    return conditions.get("ready") is not False and conditions.get("terminating") is not True


def _port(ports: list[Object]) -> int:
    """The one named http, or else the first."""
    named = [port["port"] for port in ports if port.get("name") == "http" and port.get("port")]
    given = named or [port["port"] for port in ports if port.get("port")]
    return int(given[0]) if given else SERVER_PORT
