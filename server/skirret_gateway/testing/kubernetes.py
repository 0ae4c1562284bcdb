"""An API server that lists and watches like the real one, and fails like it when told to."""

from __future__ import annotations

import asyncio
import copy
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from skirret_api import meta
from skirret_gateway.kube import Access

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Change:
    version: int
    plural: str
    namespace: str
    kind: str
    item: Object


class EmulatedApiServer:
    """Objects by plural and namespace. Changes reach watchers as they are made."""

    def __init__(self) -> None:
        self.lists = 0
        self.failures: list[int] = []  # statuses that the next requests are answered with
        self.page_failures: list[int] = []  # the same for further pages of lists
        self.is_silent = False  # watches stay open and tell nothing
        self._objects: dict[tuple[str, str], dict[str, Object]] = {}
        self._changes: list[_Change] = []
        self._version = 1
        self._oldest = 0  # versions before this are forgotten
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/apis/{group}/{version}/namespaces/{ns}/{plural}", self._get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    @property
    def access(self) -> Access:
        host, port = self._runner.addresses[0][:2]
        return Access(f"http://{host}:{port}")

    def put(self, plural: str, item: Object) -> None:
        """Creates or replaces an object."""
        metadata = item["metadata"]
        objects = self._objects.setdefault((plural, metadata["namespace"]), {})
        kind = "MODIFIED" if metadata["name"] in objects else "ADDED"
        self._note(plural, kind, item)
        objects[metadata["name"]] = item

    def delete(self, plural: str, namespace: str, name: str) -> None:
        self._note(plural, "DELETED", self._objects[plural, namespace].pop(name))

    def forget(self) -> None:
        """Watches from any version until now are answered 410."""
        self._version += 1
        self._oldest = self._version
        self._wake()

    def _note(self, plural: str, kind: str, item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        namespace = item["metadata"]["namespace"]
        self._changes.append(_Change(self._version, plural, namespace, kind, copy.deepcopy(item)))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if self.failures:
            status = self.failures.pop(0)
            return web.json_response(_status(status), status=status)
        if self.page_failures and request.query.get("continue"):
            status = self.page_failures.pop(0)
            return web.json_response(_status(status), status=status)
        if request.query.get("watch"):
            return await self._watch(request)
        self.lists += 1
        return web.json_response(self._page(request))

    def _page(self, request: web.Request) -> Object:
        """With `limit` and `continue` as the real one, the token being a number here."""
        plural, namespace = request.match_info["plural"], request.match_info["ns"]
        objects = self._objects.get((plural, namespace), {}).values()
        selector = request.query.get("labelSelector", "")
        fit = [item for item in objects if _selected(item, selector)]
        start, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        metadata = {"resourceVersion": str(self._version)}
        if len(fit) > start + limit:
            metadata["continue"] = str(start + limit)
        return {"metadata": metadata, "items": fit[start : start + limit]}

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                await self._tell(request, response)
        return response

    async def _tell(self, request: web.Request, response: web.StreamResponse) -> None:
        plural, namespace = request.match_info["plural"], request.match_info["ns"]
        selector = request.query.get("labelSelector", "")
        version = int(request.query["resourceVersion"])
        while True:
            changed = self._changed
            if version < self._oldest:
                await response.write(_line("ERROR", _status(410)))
                return
            news = [c for c in self._changes if c.version > version and not self.is_silent]
            for change in news:
                version = change.version
                here = (change.plural, change.namespace) == (plural, namespace)
                if here and _selected(change.item, selector):
                    await response.write(_line(change.kind, change.item))
            await changed.wait()


def _line(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(code: int) -> Object:
    return {"kind": "Status", "status": "Failure", "code": code, "message": f"told to say {code}"}


def _selected(item: Object, selector: str) -> bool:
    labels = item["metadata"].get("labels", {})
    return all(
        labels.get(key) == value if equals else key in labels
        for key, equals, value in (part.partition("=") for part in selector.split(",") if part)
    )


def inference_model(
    name: str, namespace: str = "default", *, created: str = "2026-01-01T00:00:00Z", **spec: Any
) -> Object:
    return {
        "apiVersion": meta.API_VERSION,
        "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created},
        "spec": {"model": {"source": "file:///models/m"}, **spec},
    }


def endpoint(address: str, *, ready: bool = True, terminating: bool = False) -> Object:
    return {"addresses": [address], "conditions": {"ready": ready, "terminating": terminating}}


def endpoint_slice(
    name: str, model: str, *endpoints: Object, namespace: str = "default", port: int = 30000
) -> Object:
    labels = {meta.MODEL_LABEL: model, meta.MANAGED_BY: meta.MANAGED_BY_SKIRRET}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": list(endpoints),
    }
