"""kopf, as a source of events and no more: each event only names a piece of work.

No kopf state: no handlers but `on.event`, so no finalizers and no annotations; and no index, since
kopf loses deletions when it lists anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kopf

from skirret_api import meta
from skirret_api.model import served_names
from skirret_api.parts import Object
from skirret_operator.kinds import BATCH, DEPLOYMENT, JOB, MODEL, POD, SERVICE, Kind
from skirret_operator.observer import OURS, Key, Snapshot

_OWN = (MODEL, BATCH)
_CHILDREN = (DEPLOYMENT, SERVICE, POD, JOB)
WATCHED = (*_OWN, *_CHILDREN)
_WATCHED_NAMES = frozenset(kind.name for kind in WATCHED)
_OWNER_LABELS = (
    (MODEL, meta.MODEL_LABEL),
    (MODEL, meta.PREFLIGHT_LABEL),
    (BATCH, meta.BATCH_LABEL),
)


class DeadWatch(Exception):
    """The resync has seen for a while what no watch has told: the process must start anew."""


class Informer:
    """Turns events into keys for `wake`, and remembers what the watches have told."""

    def __init__(self, wake: Callable[[Key], None]) -> None:
        self._wake = wake
        self._told: dict[Key, str] = {}  # the resourceVersion a watch told last
        self._missed: dict[Key, str] = {}  # what a resync saw and no watch had told by then
        self._names: dict[Key, frozenset[str]] = {}  # served names of every model
        self._claims: dict[tuple[str, str], set[Key]] = {}  # the same, by namespace and name

    def handle(self, kind: Kind, event: str | None, body: Object) -> None:
        """One event of a watch; None when the object was there at its start."""
        metadata = body["metadata"]
        key = (kind.name, metadata["namespace"], metadata["name"])
        gone = event == "DELETED"
        if gone:
            self._told.pop(key, None)
        else:
            self._told[key] = metadata["resourceVersion"]
        if kind is MODEL:
            self._names_changed(key, frozenset() if gone else frozenset(served_names(body)))
        for owner in _owners(kind, key, metadata.get("labels", {})):
            self._wake(owner)

    def is_contested(self, model: Object) -> bool:
        """Whether another of the namespace claims one of its names, unless an event was lost."""
        namespace = model["metadata"]["namespace"]
        me = {(MODEL.name, namespace, model["metadata"]["name"])}
        return any(self._claims.get((namespace, name), me) - me for name in served_names(model))

    def told(self) -> dict[Key, str]:
        """What the watches have told up to now."""
        return dict(self._told)

    def compare(self, snapshot: Snapshot, told: Mapping[Key, str]) -> None:
        """Raises DeadWatch when two resyncs in a row saw a state that no watch has told.

        `told` is from before the snapshot was begun: what was told since may be too new for it.
        """
        missed = {
            key: each["metadata"]["resourceVersion"]
            for key, each in snapshot.objects.items()
            if key[0] in _WATCHED_NAMES
            and self._told.get(key) != each["metadata"]["resourceVersion"]
        }
        for key, version in missed.items():
            if self._missed.get(key) == version:
                raise DeadWatch(f"no watch has told of {'/'.join(key)} at {version}")
        self._missed = missed
        # Deletions that a watch lost while it was listed anew.
        for key, version in told.items():
            if key not in snapshot.objects and self._told.get(key) == version:
                del self._told[key]
                if key[0] == MODEL.name:
                    self._names_changed(key, frozenset())

    def _names_changed(self, key: Key, names: frozenset[str]) -> None:
        """Wakes those who share a name that `key` has taken up or let go."""
        before = self._names.pop(key, frozenset())
        if names:
            self._names[key] = names
        for name in before ^ names:
            claim = (key[1], name)
            claimants = self._claims.setdefault(claim, set())
            claimants.discard(key)
            for other in claimants:
                self._wake(other)
            if name in names:
                claimants.add(key)
            if not claimants:
                del self._claims[claim]


def _owners(kind: Kind, key: Key, labels: dict[str, str]) -> Iterable[Key]:
    """Whose work an event of this object is."""
    if kind in _OWN:
        return [key]
    return [
        (owner.name, key[1], labels[label]) for owner, label in _OWNER_LABELS if label in labels
    ]


def registry(informer: Informer, cleanup: Callable[[], None]) -> kopf.OperatorRegistry:
    """Handlers for everything watched, the ways to log in, and what to do before kopf ends."""
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found)(_login)

    async def end(**_: Any) -> None:
        cleanup()

    kopf.on.cleanup(registry=found)(end)
    for kind in WATCHED:
        group, _, version = kind.api_version.rpartition("/")
        decorate = kopf.on.event(
            group=group, version=version, plural=kind.plural, registry=found, id=kind.plural
        )
        decorate(_handler(informer, kind))
    return found


def settings() -> kopf.OperatorSettings:
    found = kopf.OperatorSettings()
    found.scanning.disabled = True  # no rights on namespaces and definitions
    found.peering.standalone = True
    found.posting.enabled = False
    found.networking.request_timeout = 15
    found.networking.connect_timeout = 5
    found.watching.connect_timeout = 5
    found.watching.client_timeout = 600
    for kind in _CHILDREN:
        group, _, version = kind.api_version.rpartition("/")
        found.watching.label_selectors[group, version, kind.plural] = OURS
    return found


def _handler(informer: Informer, kind: Kind) -> Any:
    async def handle(event: Any, **_: Any) -> None:
        informer.handle(kind, event["type"], event["object"])

    return handle


def _login(**arguments: Any) -> Any:
    # The same order as kube.connect: KUBECONFIG wins over the pod's service account.
    return kopf.login_with_kubeconfig(**arguments) or kopf.login_with_service_account(**arguments)
