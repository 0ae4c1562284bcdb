"""Looks at the cluster: one model or batch live, or all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from skirret_api import meta, model
from skirret_api.parts import Object
from skirret_operator.kinds import (
    BATCH,
    BUDGET,
    CLAIM,
    DEPLOYMENT,
    EVENT,
    JOB,
    MODEL,
    POD,
    REVISION,
    SERVICE,
    Kind,
)
from skirret_operator.kube import Kube
from skirret_operator.reconcile.difference import is_going
from skirret_operator.reconcile.observed import ObservedBatch, ObservedModel
from skirret_operator.reconcile.rollout import is_ready
from skirret_operator.servers import Servers

OURS = f"{meta.MANAGED_BY}={meta.MANAGED_BY_SKIRRET}"
# Warnings that say nothing of why a container has not started.
_NO_CAUSE = frozenset({"Unhealthy", "BackOff", "FailedScheduling"})

Key = tuple[str, str, str]  # kind, namespace, name


@dataclass(slots=True)
class Snapshot:
    """One paged LIST of each kind in each namespace."""

    objects: dict[Key, Object] = field(default_factory=dict)

    def of(self, kind: Kind) -> list[Object]:
        return [each for (name, _, _), each in self.objects.items() if name == kind.name]

    def children(self, kind: Kind, label: str) -> dict[tuple[str, str], list[Object]]:
        """By namespace and name of their owner."""
        found: dict[tuple[str, str], list[Object]] = {}
        for each in self.of(kind):
            metadata = each["metadata"]
            owner = metadata.get("labels", {}).get(label)
            if owner is not None:
                found.setdefault((metadata["namespace"], owner), []).append(each)
        return found

    def models(self) -> Iterable[tuple[Object, ObservedModel]]:
        everybody = self.of(MODEL)
        owners = {
            namespace: model.owners(
                each for each in everybody if each["metadata"]["namespace"] == namespace
            )
            for namespace in {each["metadata"]["namespace"] for each in everybody}
        }
        children = {
            kind: self.children(kind, meta.MODEL_LABEL)
            for kind in (DEPLOYMENT, SERVICE, BUDGET, REVISION, POD)
        }
        preflights = {kind: self.children(kind, meta.PREFLIGHT_LABEL) for kind in (JOB, POD)}
        for each in everybody:
            name = (each["metadata"]["namespace"], each["metadata"]["name"])
            yield (
                each,
                ObservedModel(
                    deployment=next(iter(children[DEPLOYMENT].get(name, [])), None),
                    service=next(iter(children[SERVICE].get(name, [])), None),
                    budget=next(iter(children[BUDGET].get(name, [])), None),
                    preflights=preflights[JOB].get(name, []),
                    preflight_pods=preflights[POD].get(name, []),
                    revisions=children[REVISION].get(name, []),
                    pods=children[POD].get(name, []),
                    owners=owners[name[0]],
                ),
            )


class Observer:
    """`is_contested` may spare a LIST: whether another model of the namespace claims its names."""

    def __init__(
        self,
        kube: Kube,
        servers: Servers,
        namespaces: Iterable[str],
        is_contested: Callable[[Object], bool],
    ) -> None:
        self._kube = kube
        self._servers = servers
        self._namespaces = tuple(namespaces)
        self._is_contested = is_contested

    async def snapshot(self) -> Snapshot:
        found = Snapshot()
        for namespace in self._namespaces:
            for kind in (MODEL, BATCH, DEPLOYMENT, SERVICE, BUDGET, REVISION, POD, JOB):
                labels = "" if kind in (MODEL, BATCH) else OURS
                for each in await self._kube.list(kind, namespace, labels=labels):
                    found.objects[kind.name, namespace, each["metadata"]["name"]] = each
        return found

    async def model(self, namespace: str, name: str) -> tuple[Object, ObservedModel] | None:
        found = await self._kube.get(MODEL, namespace, name)
        if found is None:
            return None
        labels = f"{meta.MODEL_LABEL}={name}"
        of_preflight = f"{meta.PREFLIGHT_LABEL}={name}"
        # By name, not by label: another's object under this name must be seen too.
        deployment, service, budget, claim, owners = await asyncio.gather(
            self._kube.get(DEPLOYMENT, namespace, name),
            self._kube.get(SERVICE, namespace, name),
            self._kube.get(BUDGET, namespace, name),
            self._cache_claim(found),
            self._owners(found),
        )
        revisions, jobs, pods = await asyncio.gather(
            self._kube.list(REVISION, namespace, labels=labels),
            self._kube.list(JOB, namespace, labels=of_preflight),
            self._kube.list(POD, namespace, labels=labels),
        )
        preparing = await self._kube.list(POD, namespace, labels=of_preflight) if jobs else []
        hanging = [pod for pod in pods if not is_ready(pod) and not is_going(pod)]
        return found, ObservedModel(
            deployment=deployment,
            service=service,
            budget=budget,
            cache_claim=claim,
            revisions=revisions,
            preflights=jobs,
            preflight_pods=preparing,
            pods=pods,
            events=await self._events(namespace, filter(_hangs, [*hanging, *preparing])),
            progress=await self._servers.progress(hanging),
            owners=owners,
        )

    async def batch(self, namespace: str, name: str) -> tuple[Object, ObservedBatch] | None:
        """Without its record, which is not in the cluster."""
        found = await self._kube.get(BATCH, namespace, name)
        if found is None:
            return None
        labels = f"{meta.BATCH_LABEL}={name}"
        pods = await self._kube.list(POD, namespace, labels=labels)
        jobs = await self._kube.list(JOB, namespace, labels=labels)
        return found, ObservedBatch(
            jobs=jobs,
            pods=pods,
            events=await self._events(namespace, filter(_hangs, pods) if pods else jobs),
        )

    async def _cache_claim(self, found: Object) -> Object | None:
        name = found["spec"].get("cache", {}).get("claimName")
        return await self._kube.get(CLAIM, found["metadata"]["namespace"], name) if name else None

    async def _owners(self, found: Object) -> Mapping[str, str]:
        if not self._is_contested(found):
            return {}
        return model.owners(await self._kube.list(MODEL, found["metadata"]["namespace"]))

    async def _events(self, namespace: str, objects: Iterable[Object]) -> dict[str, str]:
        """The last warning of each."""
        found = {}
        for each in objects:
            uid = each["metadata"]["uid"]
            fields = f"involvedObject.uid={uid},type=Warning"
            events = await self._kube.list(EVENT, namespace, fields=fields)
            telling = [event for event in events if event.get("reason") not in _NO_CAUSE]
            if telling:
                last = max(telling, key=_time)
                message = last.get("message", "")
                found[each["metadata"]["name"]] = f"{last['reason']}: {message}"
        return found


def _hangs(pod: Object) -> bool:
    """It is placed, and has not come to start its container."""
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    waits = [each.get("state", {}).get("waiting", {}).get("reason") for each in containers]
    placed = "nodeName" in pod["spec"]
    return placed and status.get("phase") == "Pending" and set(waits) <= {"ContainerCreating"}


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
