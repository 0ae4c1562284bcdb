"""What every custom resource and every pod overlay is made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

Object = dict[str, Any]  # a Kubernetes object, or a part of one, as its JSON


class Resource(BaseModel):
    """A part of a custom resource: camelCase outside, an unknown field is an error.

    Read objects of the API server with `extra="ignore"`: a newer release may have stored more.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


def rule(expression: str, message: str, field: str | None = None) -> Object:
    """A CEL rule of the CRD; `message` is what the user reads when it is broken.

    `field` is the one to name when the rule stands on the object that holds it.
    """
    found = {"rule": expression, "message": message}
    return found if field is None else found | {"fieldPath": f".{field}"}


def rules(*given: Object) -> dict[str, Any]:
    """`json_schema_extra` of a field or a class that keeps these rules."""
    return {"x-kubernetes-validations": list(given)}


OPEN: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}

# The API server takes 1, "1" and "500m" alike; a pod spec takes them as they are.
Quantity = Annotated[int | str, WithJsonSchema({"x-kubernetes-int-or-string": True})]
# An object of the core API that goes into the pod as it is; the API server checks it there.
Verbatim = Annotated[Object, WithJsonSchema({"type": "object", **OPEN})]
Volume = Annotated[
    Object,
    WithJsonSchema(
        {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string", "description": "Name for volumeMounts."}},
            **OPEN,
        }
    ),
]
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
Duration = Annotated[
    str,
    Field(max_length=8),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 8,
            **rules(
                rule("self.matches('^[1-9][0-9]{0,3}[smhd]$')", "write it as 30s, 10m, 24h or 7d")
            ),
        }
    ),
]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(duration: Duration) -> int:
    """The length of `24h`; raises ValueError on anything else than a number and s, m, h or d."""
    try:
        return int(duration[:-1]) * _SECONDS[duration[-1]]
    except (KeyError, IndexError, ValueError):
        raise ValueError(f"{duration!r} is no duration: write it as 30s, 10m, 24h or 7d") from None


class SecretRef(Resource):
    """A Secret in the same namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the Secret.")


class Resources(Resource):
    """Requests and limits of a container."""

    requests: dict[str, Quantity] = Field(
        default={}, description="What the scheduler sets aside: cpu, memory, nvidia.com/gpu."
    )
    limits: dict[str, Quantity] = Field(default={}, description="What the container may not pass.")


class EnvVar(Resource):
    name: str = Field(description="Name of the variable.")
    value: str | None = Field(default=None, description="Its value.")
    value_from: Verbatim | None = Field(
        default=None, description="Where its value comes from, as in a pod."
    )


class VolumeMount(Resource):
    name: str = Field(description="Name of the volume.")
    mount_path: str = Field(description="Where it appears in the container.")
    sub_path: str | None = Field(default=None, description="The part of the volume to mount.")
    read_only: bool | None = Field(default=None, description="Whether writing is refused.")


class Toleration(Resource):
    key: str | None = Field(default=None, description="Key of the taint; all keys when absent.")
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None,
        description="Exists asks for the key alone; Equal, by default, its value.",
    )
    value: str | None = Field(default=None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; all effects when absent."
    )
    toleration_seconds: int | None = Field(
        default=None, description="How long a NoExecute taint is borne, in seconds."
    )


class Overlay(Resource):
    """What is added to the pods that Skirret makes. By name, a model's wins over its profile's."""

    env: list[EnvVar] = Field(default=[], description="Environment of the server.")
    volumes: list[Volume] = Field(default=[], description="Volumes beside Skirret's own.")
    volume_mounts: list[VolumeMount] = Field(
        default=[], description="Where those volumes appear in the server's container."
    )
    affinity: Verbatim | None = Field(default=None, description="Affinity, as in a pod.")
    topology_spread_constraints: list[Verbatim] = Field(
        default=[], description="Topology spread constraints, as in a pod."
    )
    priority_class_name: str | None = Field(default=None, description="Priority class of the pods.")
    tolerations: list[Toleration] = Field(default=[], description="Taints the pods bear.")
    image_pull_secrets: list[SecretRef] = Field(
        default=[], description="Secrets to pull the image with."
    )
    labels: dict[str, str] = Field(default={}, description="Labels of the pods.")
    annotations: dict[str, str] = Field(default={}, description="Annotations of the pods.")


class Condition(Resource):
    """One aspect of the state, in the form all of Kubernetes uses."""

    type: str = Field(description="Which aspect.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(description="Why, in one CamelCase word.")
    message: str = Field(default="", description="Why, in a sentence.")
    observed_generation: int = Field(description="The generation of the spec this speaks of.")
    last_transition_time: Time = Field(description="When the status last changed.")
