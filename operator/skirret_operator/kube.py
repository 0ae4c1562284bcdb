"""The only door to the API server, and so the only writer.

Namespaced rights it needs, in each namespace with models and batches:

    skirret.dev   inferencemodels                     get list watch
    skirret.dev   batchjobs                           get list watch create delete
    skirret.dev   inferencemodels/status,
                  batchjobs/status                    patch
    apps          deployments                         get list watch create patch
    apps          controllerrevisions                 list create patch delete
    core          services                            get list watch create patch
    core          pods                                list watch
    core          persistentvolumeclaims              get
    policy        poddisruptionbudgets                get list create patch delete
    core          events                              list create
    batch         jobs                                list watch create patch delete

and in its own:

    coordination.k8s.io  leases                       create; get update on skirret-operator

Server-side apply needs `create` too where the object may not exist yet. The CRD hook alone needs
get, create and patch on the two customresourcedefinitions.

KubeError
├── Conflict      409: somebody wrote first, or the name is taken; look again
├── Refused       any other 4xx: the API server's words say what is wrong with the object
└── Unreachable   no answer, 5xx or 429; try again
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from skirret_api.meta import FIELD_MANAGER
from skirret_api.parts import Object
from skirret_operator.kinds import EVENT, Kind, kind_of
from skirret_operator.reconcile.plan import Note, Plan
from skirret_operator.reconcile.times import rfc3339

_PAGE = 500
_TIMEOUT = 15.0  # seconds
_log = logging.getLogger(__name__)


class KubeError(Exception):
    """A call to the API server failed; the message says which, and why."""


class Conflict(KubeError):
    pass


class Refused(KubeError):
    def __init__(self, message: str, words: str) -> None:
        super().__init__(message)
        self.words = words  # the API server's own


class Unreachable(KubeError):
    pass


async def connect() -> ApiClient:
    """A client with the pod's service account, or with KUBECONFIG where that is set."""
    configuration = Configuration()
    file = os.environ.get("KUBECONFIG")
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and not file:
            load_incluster_config(client_configuration=configuration)
        else:
            await load_kube_config(file, client_configuration=configuration)
    except ConfigException as error:
        raise Unreachable(f"no cluster to connect to: {error}") from error
    return ApiClient(configuration)


class Kube:
    """Reads and writes plain objects. `guard` is asked before every write and may raise."""

    def __init__(
        self,
        client: ApiClient,
        clock: Callable[[], float],
        guard: Callable[[], None] = lambda: None,
        wrote: Callable[[str, str], None] = lambda verb, kind: None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._guard = guard
        self._wrote = wrote

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return await self._call("GET", kind.path(namespace, name), missing_is_none=True)

    async def list(
        self, kind: Kind, namespace: str, *, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """All objects, read in pages."""
        found: list[Object] = []
        query = {"limit": str(_PAGE)}
        query |= {"labelSelector": labels} if labels else {}
        query |= {"fieldSelector": fields} if fields else {}
        while True:
            page = await self._call("GET", kind.path(namespace), query)
            assert page is not None
            for item in page["items"]:
                # Lists leave these out of their items.
                item |= {"apiVersion": kind.api_version, "kind": kind.name}
                item["metadata"].pop("managedFields", None)
                found.append(item)
            if not (more := page["metadata"].get("continue")):
                return found
            query["continue"] = more

    async def carry_out(self, plan: Plan, owner: Object) -> None:
        """The steps of a plan that the API server takes, in their order."""
        for desired in plan.apply:
            await self.apply(desired)
        for live in plan.delete:
            await self.delete(live)
        if plan.status is not None:
            await self.apply_status(owner, plan.status)
        if plan.note is not None:
            await self._tell(owner, plan.note)

    async def apply(self, desired: Object) -> Object:
        """Server-side apply: fields we no longer name go, fields of others stay."""
        kind, metadata = kind_of(desired["kind"]), desired["metadata"]
        path = kind.path(metadata.get("namespace", ""), metadata["name"])
        return await self._write("PATCH", path, desired, kind, _APPLY, _APPLY_TYPE)

    async def apply_status(self, owner: Object, status: Object) -> None:
        """Raises Conflict when `owner` is no longer as it was seen."""
        kind, metadata = kind_of(owner["kind"]), owner["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"], "status")
        seen = {name: metadata[name] for name in ("name", "namespace", "resourceVersion")}
        body = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "metadata": seen,
            "status": status,
        }
        await self._write("PATCH", path, body, kind, _APPLY, _APPLY_TYPE)

    async def create(self, desired: Object) -> Object:
        """Raises Conflict when the name is taken."""
        kind = kind_of(desired["kind"])
        path = kind.path(desired["metadata"]["namespace"])
        return await self._write("POST", path, desired, kind, {"fieldManager": FIELD_MANAGER})

    async def replace(self, desired: Object) -> Object:
        """Raises Conflict when the live object is not the one that `desired` was made from."""
        kind, metadata = kind_of(desired["kind"]), desired["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"])
        return await self._write("PUT", path, desired, kind, {"fieldManager": FIELD_MANAGER})

    async def delete(self, live: Object) -> None:
        """Deletes this very object, and in the background what it owns; gone is no error."""
        kind, metadata = kind_of(live["kind"]), live["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": metadata["uid"]},
            "propagationPolicy": "Background",
        }
        self._guard()
        try:
            await self._call(
                "DELETE",
                kind.path(metadata["namespace"], metadata["name"]),
                body=body,
                missing_is_none=True,
            )
        except Conflict:  # another one has taken its name since
            return
        self._wrote("delete", kind.name)

    async def _tell(self, owner: Object, note: Note) -> None:
        """Events are for people to read; without them all goes on."""
        metadata, now = owner["metadata"], rfc3339(self._clock())
        event = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {
                "generateName": f"{metadata['name']}.",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                **{each: metadata[each] for each in ("namespace", "name", "uid")},
            },
            "type": note.type,
            "reason": note.reason,
            "message": note.message or note.reason,
            "source": {"component": "skirret-operator"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.create(event)
        except KubeError as error:
            _log.warning("an Event was not written: %s", error)

    async def _write(
        self,
        method: str,
        path: str,
        body: Object,
        kind: Kind,
        query: Mapping[str, str],
        content_type: str = "application/json",
    ) -> Object:
        self._guard()
        answer = await self._call(method, path, query, body, content_type)
        self._wrote(method.lower(), kind.name)
        assert answer is not None
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
        missing_is_none: bool = False,
    ) -> Object | None:
        what = f"{method} {path}"
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*request, _request_timeout=_TIMEOUT)
            raw: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{what}: {error or type(error).__name__}") from error
        if response.status == 404 and missing_is_none:
            return None
        if response.status >= 400:
            raise _error(response.status, what, _words(raw))
        answer: Object = json.loads(raw)
        return answer


_APPLY = {"fieldManager": FIELD_MANAGER, "force": "true"}
_APPLY_TYPE = "application/apply-patch+yaml"


def _error(status: int, what: str, words: str) -> KubeError:
    message = f"{what}: {words} ({status})"
    if status == 409:
        return Conflict(message)
    # The API server answers 500 to an object with a field that its schema does not have.
    is_ours = status >= 500 and _UNTYPED in words
    if not is_ours and (status >= 500 or status in (401, 429)):
        return Unreachable(message)
    first, *rest = words.splitlines() or [""]
    return Refused(message, "\n".join([first, *sorted(rest)]))  # it tells them in any order


_UNTYPED = "failed to create typed patch object"


def _words(raw: bytes) -> str:
    """What the API server says, of its Status object."""
    try:
        said: Any = json.loads(raw)
        return str(said["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:200].decode(errors="replace")
