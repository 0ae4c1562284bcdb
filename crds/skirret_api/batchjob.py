"""BatchJob: every line of a JSONL file answered exactly once."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from skirret_api.meta import GROUP
from skirret_api.openai import BATCH_ENDPOINTS
from skirret_api.parts import (
    Condition,
    Object,
    Resource,
    SecretRef,
    Time,
    rule,
    rules,
)

KIND = "BatchJob"
PLURAL = "batchjobs"

# On a BatchJob that the operator made for a batch of the API: that batch's id.
BATCH_ID_LABEL = f"{GROUP}/batch-id"


def _fixed(field: str) -> Object:
    return rule(
        f"has(self.{field}) == has(oldSelf.{field})"
        f" && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        f"{field} can't be changed; make another BatchJob",
        field=field,
    )


class BatchInput(Resource):
    """The requests."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.fileId) != has(self.uri)", "give exactly one of fileId and uri")
        )
    )

    file_id: str | None = Field(
        default=None, max_length=128, description="A file uploaded to /v1/files."
    )
    uri: str | None = Field(
        default=None,
        max_length=1024,
        description=(
            "s3://bucket/key in the namespace's store: a .jsonl or .jsonl.gz file, or a prefix of"
            " such files."
        ),
        json_schema_extra=rules(
            rule("self.matches('^s3://[a-z0-9][a-z0-9.-]+/.+$')", "write it as s3://bucket/key")
        ),
    )


class BatchOutput(Resource):
    """Where copies of the results go."""

    uri: str = Field(
        max_length=1024,
        description="s3://bucket/prefix in the namespace's store.",
        json_schema_extra=rules(
            rule(
                "self.matches('^s3://[a-z0-9][a-z0-9.-]+(/.*)?$')", "write it as s3://bucket/prefix"
            )
        ),
    )


class Notify(Resource):
    """Who is told that the batch has ended, by OpenAI's webhook `batch.completed` and its like."""

    url: str = Field(
        max_length=1024,
        description="Called with POST when the batch ends, again until it answers 2xx.",
        json_schema_extra=rules(
            rule("self.matches('^https?://[^/]+')", "write it as https://host/path")
        ),
    )
    secret_ref: SecretRef | None = Field(
        default=None,
        description=(
            "Secret with the key that signs the call, under `key`: whsec_… as OpenAI writes it, or"
            " any text."
        ),
    )


class BatchJobSpec(Resource):
    """Which requests are answered, and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            _fixed("input"),
            _fixed("endpoint"),
            _fixed("output"),
            _fixed("completionWindow"),
            _fixed("parallelism"),
            _fixed("priority"),
            _fixed("metadata"),
            _fixed("storeSecretRef"),
        )
    )

    input: BatchInput = Field(description="The requests, one a line. Can't be changed.")
    endpoint: str = Field(
        default="/v1/chat/completions",
        description="What the lines are requests to. Can't be changed.",
        json_schema_extra={"enum": list(BATCH_ENDPOINTS)},
    )
    completion_window: str = Field(
        default="24h",
        max_length=5,
        description=(
            "How long the batch may take; what is not answered then gets an error line. Can't be"
            " changed."
        ),
        json_schema_extra=rules(
            rule(
                "self.matches('^0*[1-9][0-9]*[smhd]$')",
                "write it as 90s, 30m or 24h",
            ),
            rule(
                "!self.matches('^[0-9]+[hd]$')"
                " || int(self.substring(0, self.size() - 1))"
                " <= (self.endsWith('d') ? 14 : 336)",
                "must be at most 14d",
            ),
        ),
    )
    output: BatchOutput | None = Field(
        default=None, description="Where copies of the results go. Can't be changed."
    )
    parallelism: int = Field(default=1, ge=1, le=64, description="Worker pods. Can't be changed.")
    priority: int = Field(default=0, ge=-100, le=100, description="Higher first. Can't be changed.")
    metadata: dict[str, str] | None = Field(
        default=None,
        max_length=16,
        description="Up to 16 pairs, shown in /v1/batches. Can't be changed.",
        json_schema_extra={"additionalProperties": {"type": "string", "maxLength": 512}},
    )
    suspend: bool = Field(default=False, description="Stops the workers; what is done is kept.")
    queue_name: str | None = Field(
        default=None,
        max_length=63,
        description="Kueue's queue for the workers' Job; of the next Job if edited.",
    )
    store_secret_ref: SecretRef | None = Field(
        default=None,
        description=(
            "Secret with another store that the URIs are in, under `store.json`. Can't be changed."
        ),
    )
    notify: Notify | None = Field(
        default=None, description="Whom to tell of the end; of the next Job if edited."
    )
    ttl_seconds_after_finished: int = Field(
        default=604800,
        ge=0,
        description="When this object is removed after the end. Results stay until they expire.",
    )


class BatchRequestCounts(Resource):
    total: int = Field(description="Lines.")
    completed: int = Field(description="Lines answered.")
    failed: int = Field(description="Lines refused.")


class BatchProgress(Resource):
    percent: float = Field(description="Of the lines, 0 to 100.")
    tokens_per_second: float = Field(description="Generated, lately.")
    eta_seconds: float | None = Field(default=None, description="Seconds until it is done.")
    eta: str | None = Field(default=None, description="The same, to read.")


class BatchUsage(Resource):
    input_tokens: int = Field(description="Of prompts.")
    cached_tokens: int = Field(description="Of prompts, found in a cache.")
    output_tokens: int = Field(description="Generated.")
    total_tokens: int = Field(description="Both.")


class BatchFault(Resource):
    code: str = Field(description="What kind of fault.")
    message: str = Field(description="What is wrong.")
    param: str | None = Field(default=None, description="The field that is wrong.")
    line: int | None = Field(default=None, description="The line that is wrong, from 1.")


class BatchJobStatus(Resource):
    """OpenAI's batch object, as Kubernetes writes things."""

    observed_generation: int | None = Field(
        default=None, description="The generation of the spec this speaks of."
    )
    id: str | None = Field(default=None, description="The batch's id in /v1/batches.")
    status: str | None = Field(default=None, description="As in OpenAI's batch object.")
    model: str | None = Field(default=None, description="The model that answers.")
    input_file_id: str | None = Field(default=None, description="The requests.")
    output_file_id: str | None = Field(default=None, description="The answers.")
    error_file_id: str | None = Field(default=None, description="The lines without an answer.")
    created_at: Time | None = Field(default=None, description="When it was made.")
    in_progress_at: Time | None = Field(default=None, description="When work began.")
    expires_at: Time | None = Field(default=None, description="When its window closes.")
    finalizing_at: Time | None = Field(default=None, description="When all lines were done.")
    completed_at: Time | None = Field(default=None, description="When its results were there.")
    failed_at: Time | None = Field(default=None, description="When it failed.")
    expired_at: Time | None = Field(default=None, description="When it expired.")
    cancelling_at: Time | None = Field(default=None, description="When it was to stop.")
    cancelled_at: Time | None = Field(default=None, description="When it had stopped.")
    done: str | None = Field(default=None, description="Lines done of all, as 412/500.")
    request_counts: BatchRequestCounts | None = Field(default=None, description="Lines, counted.")
    progress: BatchProgress | None = Field(default=None, description="How far and how fast.")
    usage: BatchUsage | None = Field(default=None, description="Tokens, counted.")
    errors: list[BatchFault] = Field(default=[], description="Why the input was refused.")
    conditions: list[Condition] = Field(
        default=[],
        description=(
            "Complete: every line has its result. Failed: it ended otherwise. Suspended: it waits"
            " for spec.suspend to be taken back. ExpiryAtRisk: it will hardly be done in time."
        ),
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )


class BatchJob(Resource):
    """A file of requests that Skirret answers, every line exactly once."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("self.metadata.name.size() <= 63", "metadata.name: at most 63 characters")
        )
    )

    spec: BatchJobSpec = Field(description="Which requests are answered, and how.")
    status: BatchJobStatus | None = Field(
        default=None, description="What the operator sees; written by it alone."
    )


def batch_spec(job: Object) -> BatchJobSpec:
    """`spec` of an object of the API server; fields of newer releases are passed over."""
    return BatchJobSpec.model_validate(job["spec"], extra="ignore")
