"""Objects as the API server would hold them, for tests to begin from."""

from __future__ import annotations

from typing import Any

from skirret_api import meta
from skirret_api.config import OperatorConfig
from skirret_api.parts import Object
from skirret_api.tenants import FolderStore, Tenant

NAMESPACE = "team-a"
NOW = 1_790_000_000.0  # 2026-09-21T14:13:20Z
CREATED = "2026-09-21T14:00:00Z"


def config(**given: Any) -> OperatorConfig:
    return OperatorConfig.model_validate(
        {
            "namespaces": [NAMESPACE],
            "releaseNamespace": "skirret-system",
            "gatewayUrl": "http://skirret-gateway.skirret-system.svc:8080",
            "images": {"server": "skirret-server:1", "batch": "skirret:1"},
            "defaultProfile": "cpu",
            "profiles": {"cpu": {"resources": {"limits": {"memory": "4Gi"}}}},
            **given,
        }
    )


def tenant(folder: str) -> Tenant:
    return Tenant(NAMESPACE, FolderStore(path=folder), "internal-token")


def model(name: str = "smollm2", created: str = CREATED, **spec: Any) -> Object:
    """An InferenceModel as the API server gives it back, defaults filled in."""
    return {
        "apiVersion": meta.API_VERSION,
        "kind": "InferenceModel",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": created,
        },
        "spec": {"model": {"source": "pvc://models/smollm2"}, "replicas": 1, **spec},
    }


def batch(name: str = "summaries", **spec: Any) -> Object:
    """A BatchJob as the API server gives it back, defaults filled in."""
    return {
        "apiVersion": meta.API_VERSION,
        "kind": "BatchJob",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": CREATED,
        },
        "spec": {
            "input": {"uri": "s3://bucket/in.jsonl"},
            "endpoint": "/v1/chat/completions",
            "completionWindow": "24h",
            "parallelism": 1,
            "priority": 0,
            "suspend": False,
            "ttlSecondsAfterFinished": 604800,
            **spec,
        },
    }


def pod(
    name: str = "smollm2-0", *, revision: str = "", ready: bool = False, **status: Any
) -> Object:
    """A pod of the model `smollm2`, running and loading unless `status` says otherwise."""
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True" if ready else "False"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "creationTimestamp": CREATED,
            "labels": {
                meta.MANAGED_BY: meta.MANAGED_BY_SKIRRET,
                meta.MODEL_LABEL: "smollm2",
                meta.REVISION_LABEL: revision,
            },
        },
        "spec": {
            "nodeName": "node1",
            "containers": [{"name": "server", "resources": {"limits": {"memory": "4Gi"}}}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "conditions": conditions,
            "containerStatuses": [container(running={"startedAt": CREATED})],
            **status,
        },
    }


def container(
    name: str = "server", *, restarts: int = 0, last: Object | None = None, **state: Any
) -> Object:
    """A container's status: `running=…`, `waiting=…` or `terminated=…`, and how it `last` ended."""
    return {
        "name": name,
        "restartCount": restarts,
        "state": state,
        "lastState": {"terminated": last} if last else {},
    }


def ended(code: int, message: str = "", reason: str = "Error") -> Object:
    return {"exitCode": code, "reason": reason, "message": message, "finishedAt": CREATED}
