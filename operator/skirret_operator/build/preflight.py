"""The Job that prepares a revision where its pod will run: it pulls the image, fetches the weights.

It needs no GPU, so that it runs beside the pod that serves; what is wrong with an image or a source
is found before that pod is touched.
"""

from __future__ import annotations

from skirret_api import meta
from skirret_api.meta import child_name
from skirret_api.parts import Object
from skirret_operator.build.metadata import child
from skirret_operator.build.pod import without_empty
from skirret_operator.build.revision import Revision
from skirret_operator.kinds import JOB

CONTAINER = "preflight"
_TTL_SECONDS = 600  # for reading its log
_GRACE_SECONDS = 5
_RESOURCES: Object = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}


def labels(model: Object) -> dict[str, str]:
    return {meta.PREFLIGHT_LABEL: model["metadata"]["name"]}


def job_name(model: Object, revision: Revision) -> str:
    return child_name(model["metadata"]["name"], f"preflight-{revision.name}")


def preflight(model: Object, revision: Revision, node: str | None, deadline: int) -> Object:
    """Of the stored template, so that it is of the very image and source. `node` is preferred."""
    ours = {**labels(model), meta.REVISION_LABEL: revision.name}
    return child(
        JOB,
        model,
        job_name(model, revision),
        ours,
        spec={
            "backoffLimit": 1,
            "activeDeadlineSeconds": deadline,
            "ttlSecondsAfterFinished": _TTL_SECONDS,
            "template": _template(revision.template, ours, node),
        },
    )


def _template(template: Object, ours: dict[str, str], node: str | None) -> Object:
    server, pod = template["spec"]["containers"][0], template["spec"]
    *serve, source = server["command"]
    cache = next(each for each in pod["volumes"] if each["name"] == "skirret-cache")
    container = {
        "name": CONTAINER,
        "command": [*serve[:-1], "fetch", source],
        # What is fetched to an emptyDir would be gone with this pod.
        "args": [] if "persistentVolumeClaim" in cache else ["--look"],
        "resources": _RESOURCES,
        **{each: server[each] for each in _SAME_CONTAINER if each in server},
    }
    spec = {each: pod[each] for each in _SAME_POD if each in pod}
    given = template["metadata"].get("labels", {})
    return {
        "metadata": {
            "labels": {**{k: v for k, v in given.items() if k != meta.MODEL_LABEL}, **ours},
        },
        "spec": without_empty(
            {
                **spec,
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": _GRACE_SECONDS,
                "containers": [without_empty(container)],
                "affinity": _affinity(pod, node),
            }
        ),
    }


_SAME_CONTAINER = (
    "image",
    "imagePullPolicy",
    "env",
    "envFrom",
    "volumeMounts",
    "securityContext",
    "terminationMessagePolicy",
)
_SAME_POD = (
    "automountServiceAccountToken",
    "enableServiceLinks",
    "securityContext",
    "volumes",
    "nodeSelector",
    "tolerations",
    "imagePullSecrets",
)


def _affinity(pod: Object, node: str | None) -> Object:
    required: Object = dict(pod.get("affinity", {}).get("nodeAffinity", {}))
    if node is not None:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        required["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": 100, "preference": {"matchFields": [field]}}
        ]
    return {"nodeAffinity": required} if required else {}
