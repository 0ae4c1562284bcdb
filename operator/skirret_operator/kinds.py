"""The kinds of objects the operator touches, and their paths in the API."""

from __future__ import annotations

from dataclasses import dataclass

from skirret_api import batchjob, meta, model


@dataclass(frozen=True, slots=True)
class Kind:
    api_version: str
    name: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """`/api/v1/namespaces/NAMESPACE/PLURAL/NAME/SUBRESOURCE`, as far as it is given."""
        root = (
            f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        )
        parts = [root, *(["namespaces", namespace] if self.namespaced else []), self.plural]
        return "/".join([*parts, *(part for part in (name, subresource) if part)])


MODEL = Kind(meta.API_VERSION, model.KIND, model.PLURAL)
BATCH = Kind(meta.API_VERSION, batchjob.KIND, batchjob.PLURAL)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
REVISION = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
SERVICE = Kind("v1", "Service", "services")
POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
JOB = Kind("batch/v1", "Job", "jobs")
BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
DEFINITION = Kind(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)

KINDS = (
    MODEL,
    BATCH,
    DEPLOYMENT,
    REVISION,
    SERVICE,
    POD,
    EVENT,
    JOB,
    BUDGET,
    CLAIM,
    LEASE,
    DEFINITION,
)
_BY_NAME = {kind.name: kind for kind in KINDS}


def kind_of(name: str) -> Kind:
    """Raises KeyError for a kind that the operator has no business with."""
    return _BY_NAME[name]
