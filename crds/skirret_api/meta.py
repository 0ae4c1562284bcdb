"""Names that appear on Kubernetes objects."""

from hashlib import sha256
from typing import Literal

GROUP = "skirret.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "skirret"

# Labels. EndpointSlices inherit them from their Service, which is how the gateway finds them.
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY_SKIRRET = "skirret"
MODEL_LABEL = f"{GROUP}/model"
BATCH_LABEL = f"{GROUP}/batch"
REVISION_LABEL = f"{GROUP}/revision"
# On what prepares a revision of a model; never MODEL_LABEL, by which the Service finds servers.
PREFLIGHT_LABEL = f"{GROUP}/preflight"

# Annotations on a ControllerRevision: what became of it.
ASKED = f"{GROUP}/asked"  # when `spec` last came to ask for it
SERVED = f"{GROUP}/served"  # "true": since then, every pod of it has answered at one time
FAILED = f"{GROUP}/failed"  # why it gave way to another since then

# In `spec.routing.strategy` of a model, and the gateway's --routing.
RoutingStrategy = Literal["PrefixHash", "PrefixTree", "CacheAware", "LeastLoaded", "RoundRobin"]

MAX_NAME = 63


def child_name(owner: str, suffix: str = "") -> str:
    """The name of an object made for `owner`: the same every time, never over 63 characters."""
    name = f"{owner}-{suffix}" if suffix else owner
    if len(name) <= MAX_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:8]
    tail = f"-{suffix}" if suffix else ""
    return f"{owner[: MAX_NAME - len(digest) - len(tail) - 1]}-{digest}{tail}"
