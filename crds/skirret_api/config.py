"""The operator's configuration: the file that the chart renders at /etc/skirret/config.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, model_validator

from skirret_api.model import ServerOverrides
from skirret_api.parts import Overlay, Resource, Resources, SecretRef, Toleration

CONFIG_FILE = "/etc/skirret/config.yaml"


class Images(Resource):
    server: str = Field(description="Image of model servers; a profile may name another.")
    batch: str = Field(description="Image of batch workers.")
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent", description="When images are pulled."
    )


class Profile(Resource):
    """What `spec.profile` of a model names: where and with what it runs."""

    description: str = Field(default="", description="For whom this profile is.")
    image: str | None = Field(default=None, description="Image; images.server if not set.")
    resources: Resources = Field(default=Resources(), description="Requests and limits.")
    node_selector: dict[str, str] = Field(default={}, description="Labels the node must have.")
    tolerations: list[Toleration] = Field(default=[], description="Taints the pods bear.")
    runtime_class_name: str | None = Field(default=None, description="Runtime class of the pods.")
    server: ServerOverrides = Field(
        default=ServerOverrides(), description="Launch settings; the model's own win."
    )
    pod: Overlay = Field(default=Overlay(), description="What is added to the pods.")


class BatchWorker(Resource):
    """How worker pods of batches run."""

    resources: Resources = Field(default=Resources(), description="Requests and limits.")
    node_selector: dict[str, str] = Field(default={}, description="Labels the node must have.")
    tolerations: list[Toleration] = Field(default=[], description="Taints the pods bear.")
    service_account_name: str = Field(
        default="skirret-batch", description="Service account; its token is never mounted."
    )
    max_enqueued_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of prompts of a namespace's live batches; no limit by default.",
    )


class Timings(Resource):
    """How often the operator looks, in seconds."""

    resync_seconds: float = Field(default=60, gt=0, description="All objects are listed.")
    records_seconds: float = Field(default=5, gt=0, description="Records of live batches are read.")
    sweep_seconds: float = Field(
        default=3600, gt=0, description="Expired files and what ended batches left are removed."
    )
    status_seconds: float = Field(default=2, gt=0, description="A loading server is asked.")
    surge_seconds: float = Field(
        default=10, ge=0, description="A pod that needs room beside the old one is waited for."
    )
    lease_seconds: int = Field(
        default=15, ge=3, description="How long another operator waits after this one died."
    )
    drain_seconds: int = Field(
        default=30, ge=0, description="How long streams may go on in a server that is replaced."
    )


class OperatorConfig(Resource):
    namespaces: list[str] = Field(min_length=1, description="Namespaces whose objects are ours.")
    release_namespace: str = Field(description="Where the operator itself runs.")
    images: Images = Field(description="Images of what the operator starts.")
    image_pull_secrets: list[SecretRef] = Field(default=[], description="For all pods.")
    profiles: dict[str, Profile] = Field(default={}, description="By name.")
    default_profile: str | None = Field(
        default=None, description="For models that name neither profile nor resources."
    )
    gateway_url: str = Field(description="What batch workers call, as http://host:port.")
    batch_worker: BatchWorker = Field(default=BatchWorker(), description="Worker pods.")
    run_as_user: int | None = Field(
        default=65532,
        ge=1,
        description="User and group of all pods; null where the cluster assigns them (OpenShift).",
    )
    timings: Timings = Field(default=Timings(), description="How often the operator looks.")

    @model_validator(mode="after")
    def _default_is_a_profile(self) -> Self:
        if self.default_profile is not None and self.default_profile not in self.profiles:
            raise ValueError(
                f"defaultProfile: no profile is named {self.default_profile!r}; "
                f"there are: {', '.join(sorted(self.profiles)) or 'none'}"
            )
        return self


def read_config(path: Path) -> OperatorConfig:
    """Raises OSError, yaml.YAMLError or pydantic.ValidationError, each naming what is wrong."""
    return OperatorConfig.model_validate(yaml.safe_load(path.read_text()))
