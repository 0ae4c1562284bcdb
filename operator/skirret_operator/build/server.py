"""Pods that serve a model: the template, and the Deployment and Service around it."""

from __future__ import annotations

from skirret_api import internal, meta
from skirret_api.config import OperatorConfig, Profile
from skirret_api.launch import ServerSettings, to_flags
from skirret_api.model import Cache, InferenceModelSpec, ModelSource, Rollout
from skirret_api.parts import Object, Overlay, seconds
from skirret_operator.build.metadata import child
from skirret_operator.build.pod import (
    CONTAINER_SECURITY,
    TENANT_MOUNT,
    TMP_MOUNT,
    TMP_VOLUME,
    by_name,
    plain,
    pod_security,
    tenant_volume,
    without_empty,
)
from skirret_operator.kinds import BUDGET, DEPLOYMENT, SERVICE

CONTAINER = "server"
CACHE_DIR = "/cache"
MODELS_DIR = "/models"
_FOREVER = 2**31 - 1
# Time for every gateway to see that the pod is going before it refuses its first request.
_PRE_STOP_SECONDS = 3
# Beyond the drain itself: for the last bytes, and for the process to end by itself.
_GRACE_SECONDS = 10


def labels(model: Object) -> dict[str, str]:
    """By which the Service finds its pods; never changes, since a Deployment can't change it."""
    return {meta.MODEL_LABEL: model["metadata"]["name"]}


def pod_template(
    model: Object,
    spec: InferenceModelSpec,
    profile: Profile,
    config: OperatorConfig,
    revision: str,
) -> Object:
    """The pod that serves `model` as `spec` asks for, under the label of its revision."""
    overlays = [profile.pod, *([spec.pod] if spec.pod else [])]
    source, volumes, mounts = _weights(spec.model)
    volumes = [TMP_VOLUME, tenant_volume("token"), _cache_volume(spec.cache), *volumes]
    mounts = [TMP_MOUNT, TENANT_MOUNT, {"name": "skirret-cache", "mountPath": CACHE_DIR}, *mounts]
    settings = _settings(spec, profile)
    if settings.tensor_parallel_size > 1:
        volumes.append(_SHARED_MEMORY)
        mounts.append({"name": "skirret-shm", "mountPath": "/dev/shm"})
    container: Object = {
        "name": CONTAINER,
        "image": profile.image or config.images.server,
        "imagePullPolicy": config.images.pull_policy,
        "command": ["python3", "-m", "skirret_server", "serve", source],
        "args": _arguments(settings, config),
        "env": by_name(_ENV, *(plain(overlay.env) for overlay in overlays)),
        "envFrom": _credentials(spec.model),
        "ports": [{"name": "http", "containerPort": internal.SERVER_PORT, "protocol": "TCP"}],
        "resources": without_empty((spec.resources or profile.resources).model_dump()),
        "volumeMounts": by_name_and_path(mounts, *(plain(o.volume_mounts) for o in overlays)),
        # The loader itself gives up when no byte has moved for long; this probe never does.
        "startupProbe": _probe("/health_generate", period=1, timeout=10, failures=_FOREVER),
        "readinessProbe": _probe("/ready", period=2, timeout=5, failures=2),
        "lifecycle": {"preStop": {"sleep": {"seconds": _PRE_STOP_SECONDS}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": CONTAINER_SECURITY,
    }
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(
            config.run_as_user, owns_volumes=bool(spec.cache and spec.cache.claim_name)
        ),
        "terminationGracePeriodSeconds": (
            _PRE_STOP_SECONDS + config.timings.drain_seconds + _GRACE_SECONDS
        ),
        "containers": [without_empty(container)],
        "volumes": by_name(volumes, *(overlay.volumes for overlay in overlays)),
        "nodeSelector": profile.node_selector,
        "runtimeClassName": profile.runtime_class_name,
        "tolerations": plain(
            [*profile.tolerations, *(each for overlay in overlays for each in overlay.tolerations)]
        ),
        "affinity": _last(overlays, "affinity"),
        "priorityClassName": _last(overlays, "priority_class_name"),
        "topologySpreadConstraints": _last(overlays, "topology_spread_constraints"),
        "imagePullSecrets": by_name(
            plain(config.image_pull_secrets),
            *(plain(overlay.image_pull_secrets) for overlay in overlays),
        ),
    }
    given = {name: value for overlay in overlays for name, value in overlay.labels.items()}
    ours = {meta.MANAGED_BY: meta.MANAGED_BY_SKIRRET, meta.REVISION_LABEL: revision}
    annotations = {k: v for overlay in overlays for k, v in overlay.annotations.items()}
    return {
        "metadata": without_empty(
            {"labels": {**given, **ours, **labels(model)}, "annotations": annotations}
        ),
        "spec": without_empty(pod),
    }


def deployment(
    model: Object, template: Object, replicas: int, rollout: Rollout, *, surges: bool
) -> Object:
    """`surges`: each new pod comes before its old one goes."""
    deadline = seconds(rollout.progress_deadline)
    return child(
        DEPLOYMENT,
        model,
        model["metadata"]["name"],
        labels(model),
        spec={
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": deadline,
            "selector": {"matchLabels": labels(model)},
            "strategy": _strategy(replicas, surges=surges),
            "template": template,
        },
    )


def service(model: Object) -> Object:
    return child(
        SERVICE,
        model,
        model["metadata"]["name"],
        labels(model),
        spec={
            "selector": labels(model),
            "ports": [
                {
                    "name": "http",
                    "port": internal.SERVER_PORT,
                    "protocol": "TCP",
                    "targetPort": "http",
                }
            ],
        },
    )


def disruption_budget(model: Object) -> Object:
    """Of several replicas at most one at a time; the hold covers for a single one."""
    return child(
        BUDGET,
        model,
        model["metadata"]["name"],
        labels(model),
        spec={"maxUnavailable": 1, "selector": {"matchLabels": labels(model)}},
    )


def by_name_and_path(*layers: list[Object]) -> list[Object]:
    """Mounts of all layers; what a later layer mounts on a path wins."""
    found = {mount["mountPath"]: mount for layer in layers for mount in layer}
    return list(found.values())


# A read-only root: what libraries want to keep goes to the cache, the rest to /tmp.
_ENV: list[Object] = [
    {"name": "HOME", "value": "/tmp"},
    {"name": "XDG_CACHE_HOME", "value": CACHE_DIR},
    {"name": "HF_HOME", "value": f"{CACHE_DIR}/huggingface"},
    {"name": "FLASHINFER_WORKSPACE_BASE", "value": CACHE_DIR},
    {"name": "PYTHONUNBUFFERED", "value": "1"},
]


_GPU = "nvidia.com/gpu"
# Through it the processes of several GPUs talk; a container's own has 64 MiB, which is too little.
_SHARED_MEMORY: Object = {"name": "skirret-shm", "emptyDir": {"medium": "Memory"}}


def _weights(model: ModelSource) -> tuple[str, list[Object], list[Object]]:
    """What the server is told to load, and the volumes and mounts that it needs for it."""
    scheme, _, rest = model.source.partition("://")
    if scheme == "file":
        return rest, [], []
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        folder = f"{MODELS_DIR}/{claim}"
        volume = {"claimName": claim, "readOnly": True}
        return (
            f"{folder}/{path.strip('/')}" if path.strip("/") else folder,
            [{"name": "skirret-model", "persistentVolumeClaim": volume}],
            [{"name": "skirret-model", "mountPath": folder, "readOnly": True}],
        )
    return (f"{model.source}@{model.revision}" if model.revision else model.source), [], []


def _settings(spec: InferenceModelSpec, profile: Profile) -> ServerSettings:
    """What the profile says, the model's own over it; on several GPUs it is split over all."""
    limits = (spec.resources or profile.resources).limits
    said = {"tensor_parallel_size": max(1, int(limits.get(_GPU, 1)))}
    said |= profile.server.model_dump(exclude_unset=True)
    if spec.server:
        said |= spec.server.model_dump(exclude_unset=True)
    return ServerSettings.model_validate(said)


def _arguments(settings: ServerSettings, config: OperatorConfig) -> list[str]:
    return [
        "--host=0.0.0.0",
        f"--port={internal.SERVER_PORT}",
        "--files=off",
        f"--internal-token-file={internal.TENANT_DIR}/token",
        f"--drain-timeout={config.timings.drain_seconds}",
        *to_flags(settings),
    ]


def _credentials(model: ModelSource) -> list[Object]:
    secret = model.credentials_secret_ref
    return [{"secretRef": {"name": secret.name}}] if secret else []


def _cache_volume(cache: Cache | None) -> Object:
    if cache and cache.claim_name:
        return {
            "name": "skirret-cache",
            "persistentVolumeClaim": {"claimName": cache.claim_name},
        }
    limit = cache.empty_dir.size_limit if cache and cache.empty_dir else None
    return {"name": "skirret-cache", "emptyDir": {} if limit is None else {"sizeLimit": limit}}


def _probe(path: str, *, period: int, timeout: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def _last(overlays: list[Overlay], field: str) -> object:
    """What the last overlay that says something says."""
    said = [getattr(overlay, field) for overlay in overlays]
    return next((value for value in reversed(said) if value), None)


def _strategy(replicas: int, *, surges: bool) -> Object:
    if replicas < 2 and not surges:
        return {"type": "Recreate"}
    numbers = {"maxSurge": int(surges), "maxUnavailable": int(not surges)}
    return {"type": "RollingUpdate", "rollingUpdate": numbers}
