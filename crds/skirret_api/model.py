"""InferenceModel: one language model, served."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from skirret_api.launch import ServerSettings
from skirret_api.meta import RoutingStrategy
from skirret_api.parts import (
    Condition,
    Duration,
    Object,
    Overlay,
    Quantity,
    Resource,
    Resources,
    SecretRef,
    Time,
    rule,
    rules,
)

KIND = "InferenceModel"
PLURAL = "inferencemodels"

# The fields of `spec` that shape the pod. An edit of one of these makes a revision, which restarts
# the model's pods; an edit of any other never does. None of them may have a default in the CRD: a
# default that a later release adds would look like an edit of every model.
POD_FIELDS = (
    "model",
    "profile",
    "resources",
    "server",
    "cache",
    "pod",
    "templateRevision",
    "restartedAt",
)


class ServerOverrides(ServerSettings):
    """Launch settings that someone said; what nobody said is left to the next in line."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class ModelSource(Resource):
    """Where the weights are."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.revision) || self.source.startsWith('hf://')",
                "revision belongs to an hf:// source; other sources have none",
                field="revision",
            )
        )
    )

    source: str = Field(
        max_length=1024,
        description=(
            "hf://org/name, s3://bucket/prefix, pvc://claim/path or file:///path: a folder with"
            " config.json, safetensors and tokenizer. A claim is mounted read-only."
        ),
        json_schema_extra=rules(
            rule(
                "self.matches('^(hf|s3|pvc|file)://')",
                "begin with hf://, s3://, pvc:// or file://",
            ),
            rule(
                "!self.startsWith('hf://') || self.matches('^hf://[\\\\w.-]+/[\\\\w.-]+$')",
                "write a model of the hub as hf://org/name",
            ),
            rule(
                "!self.startsWith('s3://') || self.matches('^s3://[a-z0-9][a-z0-9.-]+(/.*)?$')",
                "write a folder in a bucket as s3://bucket/prefix",
            ),
            rule(
                "!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9][a-z0-9.-]*(/.*)?$')",
                "write a folder on a claim as pvc://claim/path",
            ),
            rule(
                "!self.startsWith('file://') || self.startsWith('file:///')",
                "write a folder in the pod as file:///path, with three slashes",
            ),
            rule("!self.matches('(^|/)[.][.](/|$)')", "must not contain .. as a folder"),
        ),
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="Commit, tag or branch of an hf:// source; its main branch by default.",
    )
    credentials_secret_ref: SecretRef | None = Field(
        default=None,
        description=(
            "Secret whose keys become environment variables of the server: HF_TOKEN;"
            " AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL."
        ),
    )


class Scaling(Resource):
    """Replicas that follow the load."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.minReplicas <= self.maxReplicas",
                "must not be less than minReplicas",
                field="maxReplicas",
            )
        )
    )

    min_replicas: int = Field(
        default=1, ge=0, le=1000, description="Fewest replicas; 0 lets the model sleep."
    )
    max_replicas: int = Field(ge=1, le=1000, description="Most replicas.")
    target: int | None = Field(
        default=None, ge=1, le=4096, description="Requests per replica that scaling aims at."
    )
    idle_after: Duration | None = Field(
        default=None, description="How long without a request until the model sleeps, as 15m."
    )


class Rollout(Resource):
    """How a new revision takes over."""

    strategy: Literal["Auto", "Surge", "Recreate"] = Field(
        default="Auto",
        description=(
            "Surge starts the new pod before the old one goes and waits for room for both;"
            " Recreate the other way round; Auto surges if there is room, and else replaces one"
            " pod after the other."
        ),
    )
    progress_deadline: Duration = Field(
        default="30m", description="How long a model may be on its way before it is Stalled."
    )
    rollback: bool = Field(
        default=True, description="Whether a revision that fails gives way to the last good one."
    )


class EmptyDir(Resource):
    """Room on the node that lives as long as the pod."""

    size_limit: Quantity | None = Field(default=None, description="Most bytes, as 50Gi.")


class Cache(Resource):
    """Where fetched weights are kept."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.claimName) && has(self.emptyDir))",
                "give claimName or emptyDir, not both",
            )
        )
    )

    claim_name: str | None = Field(
        default=None, max_length=253, description="A claim, shared by pods and kept between them."
    )
    empty_dir: EmptyDir | None = Field(
        default=None, description="Room on the node; what a model has by default."
    )


class Split(Resource):
    """A share of the requests for another model."""

    model: str = Field(max_length=63, description="Name of an InferenceModel of the namespace.")
    weight: int = Field(ge=0, le=100, description="Of a hundred requests.")


class Routing(Resource):
    """How the gateway chooses among replicas."""

    strategy: Literal["Auto", RoutingStrategy] = Field(
        default="Auto",
        description=(
            "PrefixHash sends prompts that begin alike to one replica, as long as it has no more"
            " than its share; PrefixTree to the one that was sent most of it before, CacheAware"
            " to the one that says it still has most of it; LeastLoaded and RoundRobin look at no"
            " prompt; Auto leaves it to the gateway."
        ),
    )
    split: list[Split] = Field(
        default=[],
        max_length=8,
        description="Other models that get a share of the requests for the served names.",
    )


class InferenceModelSpec(Resource):
    """What is served, where, and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.profile) && has(self.resources))",
                "give profile or resources, not both",
                field="resources",
            ),
            # Asked for but not built yet: refused, never ignored.
            rule("!has(self.scaling)", "not in this release; set replicas", field="scaling"),
            rule(
                "!has(self.routing) || !has(self.routing.split)"
                " || self.routing.split.map(part, part.weight).sum() <= 100",
                "the weights of split add up to more than 100",
                field="routing",
            ),
        )
    )

    model: ModelSource = Field(description="Where the weights are.")
    served_names: list[str] = Field(
        default=[],
        max_length=16,
        description=(
            "Names that requests may call the model by; its own name if none is given. A name"
            " belongs to the oldest model of the namespace that claims it; namespace/name always"
            " works. Editing restarts nothing."
        ),
        json_schema_extra={
            "x-kubernetes-list-type": "set",
            "items": {
                "type": "string",
                "maxLength": 253,
                **rules(
                    rule(
                        "self.matches('^[A-Za-z0-9][A-Za-z0-9._:/@-]*$')",
                        "use letters, digits and . _ : / @ -, beginning with a letter or digit",
                    )
                ),
            },
        },
    )
    profile: str | None = Field(
        default=None,
        max_length=63,
        description="A resource profile of this installation: node, image, requests and limits.",
    )
    resources: Resources | None = Field(
        default=None, description="Requests and limits of the server, instead of a profile."
    )
    server: ServerOverrides | None = Field(
        default=None, description="Launch settings; what is not set comes from the profile."
    )
    replicas: int = Field(
        default=1, ge=0, le=1000, description="How many pods serve; autoscalers write it by /scale."
    )
    scaling: Scaling | None = Field(
        default=None, description="Replicas that follow the load, instead of replicas."
    )
    rollout: Rollout | None = Field(default=None, description="How a new revision takes over.")
    cache: Cache | None = Field(default=None, description="Where fetched weights are kept.")
    routing: Routing | None = Field(
        default=None, description="How the gateway chooses among replicas."
    )
    template_revision: int | None = Field(
        default=None,
        ge=0,
        description="Raise it to take what a newer Skirret or profile would render; restarts pods.",
    )
    restarted_at: Time | None = Field(
        default=None, description="Set it to the present time to restart the pods."
    )
    pod: Overlay | None = Field(default=None, description="What is added to the pods.")


class Replicas(Resource):
    current: int = Field(description="Pods there are.")
    ready: int = Field(description="Pods that answer.")
    updated: int = Field(description="Pods of the target revision.")
    summary: str = Field(description="Ready of wanted, as 1/2.")


class Revisions(Resource):
    serving: str | None = Field(default=None, description="The revision that answers.")
    target: str | None = Field(default=None, description="The revision that spec asks for.")


class Load(Resource):
    percent: float | None = Field(default=None, description="Of the weights, 0 to 100.")
    eta_seconds: float | None = Field(default=None, description="Seconds until it is loaded.")
    bytes_per_second: float | None = Field(default=None, description="How fast weights arrive.")


class InferenceModelStatus(Resource):
    """What the operator sees."""

    observed_generation: int | None = Field(
        default=None, description="The generation of the spec this speaks of."
    )
    conditions: list[Condition] = Field(
        default=[],
        description=(
            "Ready: the revision spec asks for answers. Progressing: on its way there. Stalled:"
            " it won't get there unaided. ScalingReady: replicas can be set. UpdateAvailable: a"
            " restart would take a newer template."
        ),
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )
    replicas: Replicas | None = Field(default=None, description="Pods, counted.")
    revisions: Revisions | None = Field(default=None, description="Which template runs.")
    load: Load | None = Field(default=None, description="How far loading has come.")
    url: str | None = Field(default=None, description="Base URL for clients inside the cluster.")
    selector: str | None = Field(default=None, description="Labels of the pods, for autoscalers.")


class InferenceModel(Resource):
    """A language model that Skirret serves under an OpenAI-compatible API."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.metadata.name.size() <= 63", "metadata.name: at most 63 characters"),
            rule(
                "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                "metadata.name: lowercase letters, digits and hyphens, beginning with a letter;"
                " it becomes the name of a Service",
            ),
        )
    )

    spec: InferenceModelSpec = Field(description="What is served, where, and how.")
    status: InferenceModelStatus | None = Field(
        default=None, description="What the operator sees; written by it alone."
    )


def model_spec(model: Object) -> InferenceModelSpec:
    """`spec` of an object of the API server; fields of newer releases are passed over."""
    return InferenceModelSpec.model_validate(model["spec"], extra="ignore")


def served_names(model: Object) -> list[str]:
    """The names this InferenceModel claims."""
    return model["spec"].get("servedNames") or [model["metadata"]["name"]]


def owners(models: Iterable[Object]) -> dict[str, str]:
    """Among the models of one namespace, the oldest that claims each served name."""
    owner: dict[str, str] = {}
    for model in sorted(models, key=_age):
        if "deletionTimestamp" not in model["metadata"]:
            for name in served_names(model):
                owner.setdefault(name, model["metadata"]["name"])
    return owner


def _age(model: Object) -> tuple[str, str]:
    metadata = model["metadata"]
    return metadata["creationTimestamp"], metadata["name"]
