"""Who owns an object, and how ours are recognised."""

from __future__ import annotations

from skirret_api import meta
from skirret_api.parts import Object
from skirret_operator.kinds import Kind


def metadata(owner: Object, name: str, labels: dict[str, str]) -> Object:
    """Of a child of `owner`, which Kubernetes removes together with it."""
    return {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "labels": {meta.MANAGED_BY: meta.MANAGED_BY_SKIRRET, **labels},
        "ownerReferences": [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ],
    }


def child(kind: Kind, owner: Object, name: str, labels: dict[str, str], **body: object) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": metadata(owner, name, labels),
        **body,
    }


def is_ours(live: Object, labels: dict[str, str]) -> bool:
    """Whether an object bears our labels: made by us, perhaps for an owner of the same name."""
    found: dict[str, str] = live["metadata"].get("labels", {})
    return {meta.MANAGED_BY: meta.MANAGED_BY_SKIRRET, **labels}.items() <= found.items()
