"""An API server for tests: small, in memory, on a socket, with the faults that real ones have.

It knows lists in pages, watches, server-side apply, preconditions and deletion by owner references;
and on demand what hurts: expired and silent watches, refusals, errors. It checks no schema.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml
from aiohttp import web

from skirret_api.parts import Object
from skirret_operator.kinds import KINDS, Kind

# Lists whose items are known by a key; server-side apply keeps the items of others.
_KEYS = ("type", "name", "mountPath", "uid", "containerPort")


@dataclass(frozen=True, slots=True)
class Call:
    """A request that changed something, or was refused."""

    verb: str
    path: str
    body: Any = None


@dataclass(slots=True)
class _Watch:
    kind: Kind
    namespace: str
    selects: Callable[[Object], bool]
    events: asyncio.Queue[Object | None] = field(default_factory=asyncio.Queue)


class ApiServer:
    """Objects, and who watches them. Tests may read and change it while it is asked."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}  # plural, namespace, name
        self.calls: list[Call] = []  # writes alone, in order
        self.reads: Counter[str] = Counter()  # GETs, watches left out, by path
        self._applied: dict[tuple[tuple[str, str, str], str], Object] = {}
        self._version = 0
        self._watches: list[_Watch] = []
        self._silent: set[str] = set()  # plurals whose watches tell nothing
        self._faults: list[tuple[str, str, int, str]] = []

    # ---- what tests do

    def put(self, body: Object) -> Object:
        """Stores an object as somebody else would, and tells the watches."""
        kind = _kind(body["kind"])
        metadata = body.setdefault("metadata", {})
        body.setdefault("apiVersion", kind.api_version)
        key = (kind.plural, metadata.get("namespace", ""), metadata["name"])
        before = self.objects.get(key)
        metadata.setdefault("uid", before["metadata"]["uid"] if before else str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", _now())
        metadata.setdefault("generation", 1)
        self._store(key, body)
        owners = _owner_uids(body)
        if owners and not owners & {each["metadata"]["uid"] for each in self.objects.values()}:
            self._delete(key)  # as the garbage collector does
        return body

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self.objects.get((kind.plural, namespace, name))

    def all(self, kind: Kind) -> list[Object]:
        return [each for (plural, _, _), each in self.objects.items() if plural == kind.plural]

    def edit(self, kind: Kind, namespace: str, name: str, change: Callable[[Object], None]) -> None:
        """Changes a stored object as somebody else would; a change of `spec` is a generation."""
        key = (kind.plural, namespace, name)
        body = deepcopy(self.objects[key])
        change(body)
        if body.get("spec") != self.objects[key].get("spec"):
            body["metadata"]["generation"] += 1
        self._store(key, body)

    def remove(self, kind: Kind, namespace: str, name: str, *, tell: bool = True) -> None:
        """Deletes an object and what it owns; `tell=False` loses the event, as a re-list does."""
        self._delete((kind.plural, namespace, name), tell=tell)

    def silence(self, kind: Kind) -> None:
        """Its watches stay open and tell nothing any more."""
        self._silent.add(kind.plural)

    def expire_watches(self) -> None:
        """410 Gone: whoever watches must list again."""
        self._end_watches(410, "too old resource version")

    def break_watches(self) -> None:
        """An error in the stream, of the kind that listing again does not heal."""
        self._end_watches(500, "etcd is away")

    def fail(self, verb: str, path: str, status: int, message: str, times: int = 1) -> None:
        """The next requests of this verb whose path ends like this fail."""
        self._faults += [(verb, path, status, message)] * times

    @property
    def watched(self) -> set[str]:
        """Plurals that somebody watches."""
        return {watch.kind.plural for watch in self._watches}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/api", self._versions)
        app.router.add_get("/apis", self._groups)
        app.router.add_get("/version", self._versions)
        for version in sorted({kind.api_version for kind in KINDS}):
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            app.router.add_get(root, self._resources(version))
        for kind in KINDS:
            path = kind.path("{namespace}")
            app.router.add_get(path, self._handler(kind, self._list_or_watch))
            app.router.add_post(path, self._handler(kind, self._create))
            one = kind.path("{namespace}", "{name}")
            app.router.add_get(one, self._handler(kind, self._get))
            app.router.add_put(one, self._handler(kind, self._replace))
            app.router.add_delete(one, self._handler(kind, self._remove))
            for tail in ("", "/{subresource}"):
                app.router.add_patch(one + tail, self._handler(kind, self._apply))
        return app

    # ---- requests

    def _handler(self, kind: Kind, answer: Any) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            for fault in self._faults:
                verb, path, status, message = fault
                if request.method == verb and request.path.endswith(path):
                    self._faults.remove(fault)
                    return _status(status, message)
            response: web.StreamResponse = await answer(kind, request)
            return response

        return handle

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"versions": ["v1"]})

    async def _groups(self, _: web.Request) -> web.Response:
        groups = []
        for version in sorted({kind.api_version for kind in KINDS if "/" in kind.api_version}):
            found = {"groupVersion": version, "version": version.partition("/")[2]}
            name = version.partition("/")[0]
            groups.append({"name": name, "versions": [found], "preferredVersion": found})
        return web.json_response({"groups": groups})

    def _resources(self, version: str) -> Any:
        kinds = [kind for kind in KINDS if kind.api_version == version]
        verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
        body = [
            {
                "name": kind.plural,
                "singularName": kind.name.lower(),
                "kind": kind.name,
                "namespaced": kind.namespaced,
                "verbs": verbs,
            }
            for kind in kinds
        ]
        if version == "v1":
            body.append(
                {
                    "name": "namespaces",
                    "singularName": "namespace",
                    "kind": "Namespace",
                    "namespaced": False,
                    "verbs": verbs,
                }
            )

        async def answer(_: web.Request) -> web.Response:
            return web.json_response({"groupVersion": version, "resources": body})

        return answer

    async def _list_or_watch(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        namespace = request.match_info.get("namespace", "")
        selects = _selector(request)
        if request.query.get("watch") == "true":
            return await self._watch(kind, namespace, selects, request)
        self.reads[request.path] += 1
        found = [
            each
            for (plural, where, _), each in sorted(self.objects.items())
            if plural == kind.plural and where == namespace and selects(each)
        ]
        start = int(request.query.get("continue") or 0)
        limit = int(request.query.get("limit") or 0) or len(found)
        more = str(start + limit) if start + limit < len(found) else ""
        page = [_listed(each) for each in found[start : start + limit]]
        metadata = {"resourceVersion": str(self._version), "continue": more}
        return web.json_response({"kind": f"{kind.name}List", "metadata": metadata, "items": page})

    async def _watch(
        self, kind: Kind, namespace: str, selects: Callable[[Object], bool], request: web.Request
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        watch = _Watch(kind, namespace, selects)
        since = int(request.query.get("resourceVersion") or 0)
        for (plural, where, _), each in self.objects.items():
            is_new = int(each["metadata"]["resourceVersion"]) > since
            if is_new and plural == kind.plural and where == namespace and selects(each):
                watch.events.put_nowait({"type": "ADDED", "object": deepcopy(each)})
        self._watches.append(watch)
        try:
            await response.prepare(request)
            while (event := await watch.events.get()) is not None:
                await response.write(json.dumps(event).encode() + b"\n")
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        finally:
            self._watches.remove(watch)
        return response

    async def _get(self, kind: Kind, request: web.Request) -> web.Response:
        self.reads[request.path] += 1
        found = self.objects.get(_key(kind, request))
        return _status(404, "not found") if found is None else web.json_response(found)

    async def _create(self, kind: Kind, request: web.Request) -> web.Response:
        body = await request.json()
        metadata = body["metadata"]
        metadata["namespace"] = request.match_info.get("namespace", "")
        if "name" not in metadata:
            metadata["name"] = metadata.pop("generateName") + uuid.uuid4().hex[:8]
        self.calls.append(Call("create", request.path, deepcopy(body)))
        if (kind.plural, metadata["namespace"], metadata["name"]) in self.objects:
            return _status(409, f"{kind.plural} {metadata['name']} already exists")
        return web.json_response(self.put(body), status=201)

    async def _replace(self, kind: Kind, request: web.Request) -> web.Response:
        body, key = await request.json(), _key(kind, request)
        self.calls.append(Call("replace", request.path, deepcopy(body)))
        before = self.objects.get(key)
        if before is None:
            return _status(404, "not found")
        if body["metadata"].get("resourceVersion") != before["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified")
        self._store(key, body)
        return web.json_response(body)

    async def _remove(self, kind: Kind, request: web.Request) -> web.Response:
        key = _key(kind, request)
        options = await request.json() if request.can_read_body else {}
        self.calls.append(Call("delete", request.path, options))
        found = self.objects.get(key)
        if found is None:
            return _status(404, "not found")
        wanted = options.get("preconditions", {}).get("uid")
        if wanted not in (None, found["metadata"]["uid"]):
            return _status(409, "the UID does not match")
        self._delete(key)
        return web.json_response(found)

    async def _apply(self, kind: Kind, request: web.Request) -> web.Response:
        body, key = await request.json(), _key(kind, request)
        subresource = request.match_info.get("subresource", "")
        self.calls.append(Call("apply", request.path, deepcopy(body)))
        before = self.objects.get(key)
        if before is None and subresource:
            return _status(404, "not found")
        seen = body["metadata"].pop("resourceVersion", None)
        if before is not None and seen not in (None, before["metadata"]["resourceVersion"]):
            return _status(409, "the object has been modified")
        part = {"status": body.get("status", {})} if subresource else _without(body, "status")
        last = self._applied.get((key, subresource), {})
        after = _merge(_forget(deepcopy(before or {}), last, part), part)
        self._applied[key, subresource] = deepcopy(part)
        if before is None:
            return web.json_response(self.put(after), status=201)
        if after.get("spec") != before.get("spec"):
            after["metadata"]["generation"] += 1
        if after != before:
            self._store(key, after)
        return web.json_response(after)

    # ---- state

    def _store(self, key: tuple[str, str, str], body: Object) -> None:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        known = key in self.objects
        self.objects[key] = body
        self._tell("MODIFIED" if known else "ADDED", key, body)

    def _delete(self, key: tuple[str, str, str], *, tell: bool = True) -> None:
        body = self.objects.pop(key)
        for about in [each for each in self._applied if each[0] == key]:
            del self._applied[about]
        self._version += 1
        body = deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self._version)
        if tell:
            self._tell("DELETED", key, body)
        uid = body["metadata"]["uid"]
        for owned in [each for each, it in self.objects.items() if uid in _owner_uids(it)]:
            self._delete(owned, tell=tell)

    def _end_watches(self, code: int, message: str) -> None:
        error = {"kind": "Status", "status": "Failure", "code": code, "message": message}
        for watch in self._watches:
            watch.events.put_nowait({"type": "ERROR", "object": error})
            watch.events.put_nowait(None)

    def _tell(self, event: str, key: tuple[str, str, str], body: Object) -> None:
        plural, namespace, _ = key
        for watch in self._watches if plural not in self._silent else ():
            if (watch.kind.plural, watch.namespace) == (plural, namespace) and watch.selects(body):
                watch.events.put_nowait({"type": event, "object": deepcopy(body)})


@asynccontextmanager
async def serve(api: ApiServer) -> AsyncIterator[str]:
    """The URL of the API server, while the context lasts."""
    runner = web.AppRunner(api.app(), access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        for watch in list(api._watches):
            watch.events.put_nowait(None)
        await runner.cleanup()


def kubeconfig(url: str) -> str:
    """The text of a kubeconfig file for that URL."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": url}}],
            "users": [{"name": "fake", "user": {"token": "fake"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "current-context": "fake",
        }
    )


def _kind(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)


def _key(kind: Kind, request: web.Request) -> tuple[str, str, str]:
    return kind.plural, request.match_info.get("namespace", ""), request.match_info["name"]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "message": message}
    return web.json_response(body, status=code)


def _listed(body: Object) -> Object:
    """As an item of a list: those of built-in kinds do not say what they are."""
    return {name: value for name, value in body.items() if name not in ("kind", "apiVersion")}


def _selector(request: web.Request) -> Callable[[Object], bool]:
    labels = dict(_pairs(request.query.get("labelSelector", "")))
    fields = dict(_pairs(request.query.get("fieldSelector", "")))

    def selects(body: Object) -> bool:
        found = body["metadata"].get("labels", {})
        if any(found.get(name) != value for name, value in labels.items()):
            return False
        return all(_field(body, path) == value for path, value in fields.items())

    return selects


def _pairs(selector: str) -> Iterator[tuple[str, str]]:
    for each in filter(None, selector.split(",")):
        name, _, value = each.partition("=")
        yield name, value


def _field(body: Any, path: str) -> Any:
    for part in path.split("."):
        body = body.get(part, {})
    return body


def _owner_uids(body: Object) -> set[str]:
    return {owner["uid"] for owner in body["metadata"].get("ownerReferences", [])}


def _without(body: Object, name: str) -> Object:
    return {key: value for key, value in body.items() if key != name}


def _merge(live: Any, applied: Any) -> Any:
    if isinstance(live, dict) and isinstance(applied, dict):
        return {**live, **{name: _merge(live.get(name), it) for name, it in applied.items()}}
    key = _list_key(applied)
    if isinstance(live, list) and key is not None:
        mine = {item[key]: item for item in applied}
        kept = [
            _merge(item, mine.pop(item.get(key))) if item.get(key) in mine else item
            for item in live
        ]
        return [*kept, *mine.values()]
    return deepcopy(applied)


def _forget(live: Any, last: Any, applied: Any) -> Any:
    """`live` without what its manager applied last time and does not any more."""
    if isinstance(live, dict) and isinstance(last, dict):
        applied = applied if isinstance(applied, dict) else {}
        return {
            name: _forget(value, last.get(name), applied.get(name)) if name in applied else value
            for name, value in live.items()
            if name in applied or name not in last
        }
    key = _list_key(last)
    if isinstance(live, list) and key is not None and isinstance(applied, list):
        before = {item[key]: item for item in last}
        now = {item[key]: item for item in applied}
        return [
            _forget(item, before.get(item.get(key)), now.get(item.get(key)))
            for item in live
            if item.get(key) in now or item.get(key) not in before
        ]
    return live


def _list_key(items: Any) -> str | None:
    if not isinstance(items, list) or not items or not all(isinstance(x, dict) for x in items):
        return None
    return next((key for key in _KEYS if all(key in item for item in items)), None)
