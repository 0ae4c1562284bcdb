"""The Kubernetes objects the local cluster brings along: DNS, store, namespaces, volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skirret_local import certificates
from skirret_local.network import (
    DNS_PORT,
    DNS_SERVICE,
    HOST,
    MOST_NODES,
    S3_SERVICE_PORT,
    STORE_S3_PORT,
    first_nodes,
)

Object = dict[str, Any]

STORE_NAMESPACE = "storage"
LABEL = "skirret.dev/local"


def system() -> list[Object]:
    """What every local cluster has: names and the store, which run on the machine itself."""
    dns = [("dns", "UDP", 53, DNS_PORT), ("dns-tcp", "TCP", 53, DNS_PORT)]
    return [
        *_dns_role(),
        *_service("kube-dns", "kube-system", dns, clusterIP=DNS_SERVICE),
        namespace(STORE_NAMESPACE),
        *_service("s3", STORE_NAMESPACE, [("s3", "TCP", S3_SERVICE_PORT, STORE_S3_PORT)]),
    ]


def namespace(name: str) -> Object:
    """A namespace whose pods must keep to the restricted Pod Security Standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return _object("v1", "Namespace", name, labels=labels)


def volume(name: str, namespace: str, path: Path) -> tuple[Object, Object]:
    """A folder of the machine as a read-only claim: a volume of type `local`, bound beforehand.

    The restricted standard refuses hostPath; a claim it allows. Every node has the folder.
    """
    common = {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
    }
    hosts = {
        "key": "kubernetes.io/hostname",
        "operator": "In",
        "values": [node.name for node in first_nodes(MOST_NODES)],
    }
    persistent_volume = _object(
        "v1",
        "PersistentVolume",
        f"{name}-{namespace}",
        spec={
            **common,
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": name,
                "namespace": namespace,
            },
        },
    )
    claim = _object(
        "v1",
        "PersistentVolumeClaim",
        name,
        namespace,
        spec={
            **common,
            "volumeName": f"{name}-{namespace}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    )
    return persistent_volume, claim


def gpus(count: int) -> Object:
    """A patch of a node's status: GPUs the scheduler counts, and nothing uses."""
    return {"status": {"capacity": {"nvidia.com/gpu": str(count)}}}


def _service(
    name: str, namespace: str, ports: list[tuple[str, str, int, int]], **spec: Any
) -> list[Object]:
    """A Service without selector, to ports of the machine: (name, protocol, port, target)."""
    return [
        _object(
            "v1",
            "Service",
            name,
            namespace,
            spec={
                **spec,
                "ports": [
                    {"name": port, "protocol": protocol, "port": number, "targetPort": target}
                    for port, protocol, number, target in ports
                ],
            },
        ),
        _object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            f"{name}-machine",
            namespace,
            labels={
                "kubernetes.io/service-name": name,
                "endpointslice.kubernetes.io/managed-by": "skirret-local",
            },
            addressType="IPv4",
            endpoints=[{"addresses": [HOST], "conditions": {"ready": True}}],
            ports=[
                {"name": port, "protocol": protocol, "port": target}
                for port, protocol, _, target in ports
            ],
        ),
    ]


def _dns_role() -> list[Object]:
    name = "skirret-local-dns"
    watched = [
        {"apiGroups": [""], "resources": ["namespaces", "services"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    return [
        _object(
            f"{rbac}/v1",
            "ClusterRole",
            name,
            rules=[{**rule, "verbs": ["list", "watch"]} for rule in watched],
        ),
        _object(
            f"{rbac}/v1",
            "ClusterRoleBinding",
            name,
            roleRef={"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            subjects=[{"apiGroup": rbac, "kind": "User", "name": certificates.DNS}],
        ),
    ]


def _object(
    api: str,
    kind: str,
    name: str,
    namespace: str | None = None,
    labels: dict[str, str] | None = None,
    **rest: Any,
) -> Object:
    metadata: Object = {"name": name, "labels": {LABEL: "true", **(labels or {})}}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}
