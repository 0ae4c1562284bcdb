"""What all our pods have in common: Pod Security "restricted", no API token, a writable /tmp."""

from __future__ import annotations

from collections.abc import Iterable

from skirret_api import internal
from skirret_api.parts import Object, Resource

CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
TMP_VOLUME: Object = {"name": "skirret-tmp", "emptyDir": {}}
TMP_MOUNT: Object = {"name": "skirret-tmp", "mountPath": "/tmp"}
TENANT_MOUNT: Object = {
    "name": "skirret-tenant",
    "mountPath": internal.TENANT_DIR,
    "readOnly": True,
}


def pod_security(user: int | None, *, owns_volumes: bool = False) -> Object:
    """`owns_volumes`: Kubernetes makes writable volumes the group's, which may take long."""
    context: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if user is not None:
        context |= {"runAsUser": user, "runAsGroup": user}
        if owns_volumes:
            context |= {"fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def tenant_volume(*keys: str) -> Object:
    """Those keys of the namespace's own Secret, as files."""
    return {
        "name": "skirret-tenant",
        "secret": {
            "secretName": internal.TENANT_SECRET,
            "items": [{"key": key, "path": key} for key in keys],
        },
    }


def plain(parts: Iterable[Resource]) -> list[Object]:
    """Parts of a pod, as Kubernetes writes them."""
    return [part.model_dump(by_alias=True, exclude_none=True) for part in parts]


def without_empty(spec: Object) -> Object:
    """`spec` without the fields that say nothing."""
    return {name: value for name, value in spec.items() if value not in (None, [], {}, "")}


def by_name(*layers: Iterable[Object]) -> list[Object]:
    """The named items of all layers; a later layer's wins in the earlier one's place."""
    found: dict[str, Object] = {}
    for layer in layers:
        found |= {item["name"]: item for item in layer}
    return list(found.values())
