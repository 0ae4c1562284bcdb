"""The Job that runs a batch's workers, and the BatchJob of a batch that came by the API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from skirret_api import internal, meta
from skirret_api.batchjob import BATCH_ID_LABEL, BatchJobSpec
from skirret_api.config import OperatorConfig
from skirret_api.meta import child_name
from skirret_api.parts import Object
from skirret_batch.record import Record
from skirret_operator.build.metadata import child
from skirret_operator.build.pod import (
    CONTAINER_SECURITY,
    TENANT_MOUNT,
    TMP_MOUNT,
    TMP_VOLUME,
    plain,
    pod_security,
    tenant_volume,
    without_empty,
)
from skirret_operator.kinds import BATCH, JOB

CONTAINER = "worker"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_NEVER = 2**31 - 1
# For reading the worker's log after the end.
_JOB_TTL_SECONDS = 3600


def labels(batch: Object) -> dict[str, str]:
    return {meta.BATCH_LABEL: batch["metadata"]["name"]}


def job_name(batch: Object, attempt: int) -> str:
    return child_name(batch["metadata"]["name"], str(attempt))


def job(
    batch: Object,
    spec: BatchJobSpec,
    record: Record,
    config: OperatorConfig,
    attempt: int,
    queue: str | None,
) -> Object:
    """One attempt to answer the batch; each worker finds by itself what is left to do."""
    made = child(
        JOB,
        batch,
        job_name(batch, attempt),
        {**labels(batch), **({QUEUE_LABEL: queue} if queue else {})},
        spec={
            "completionMode": "Indexed",
            "completions": record.parallelism,
            "parallelism": record.parallelism,
            "backoffLimit": _NEVER,
            "ttlSecondsAfterFinished": _JOB_TTL_SECONDS,
            "template": _pod_template(batch, spec, record, config),
        },
    )
    made["metadata"]["annotations"] = {ATTEMPT: str(attempt)}
    return made


ATTEMPT = f"{meta.GROUP}/attempt"


def attempt_of(live: Object) -> int:
    return int(live["metadata"].get("annotations", {}).get(ATTEMPT, "0"))


def is_queued(live: Object) -> bool:
    """Whether it waits for Kueue."""
    labels = live["metadata"].get("labels", {})
    return QUEUE_LABEL in labels and live["spec"].get("suspend") is True


def custom_resource(namespace: str, record: Record) -> Object:
    """The BatchJob that stands for a record the API made."""
    batch = record.batch
    source = {"uri": record.input_uri} if record.input_uri else {"fileId": batch.input_file_id}
    return {
        "apiVersion": BATCH.api_version,
        "kind": BATCH.name,
        "metadata": {
            "name": record.id.replace("_", "-"),
            "namespace": namespace,
            "labels": {
                meta.MANAGED_BY: meta.MANAGED_BY_SKIRRET,
                BATCH_ID_LABEL: record.id,
            },
        },
        "spec": without_empty(
            {
                "input": source,
                "endpoint": batch.endpoint,
                "completionWindow": batch.completion_window,
                "output": {"uri": record.output_uri} if record.output_uri else None,
                "parallelism": record.parallelism,
                "priority": record.priority,
                "metadata": batch.metadata,
            }
        ),
    }


def _pod_template(
    batch: Object, spec: BatchJobSpec, record: Record, config: OperatorConfig
) -> Object:
    worker = config.batch_worker
    arguments, secrets = _extras(spec)
    if worker.max_enqueued_tokens is not None:
        arguments.append(f"--max-enqueued-tokens={worker.max_enqueued_tokens}")
    container: Object = {
        "name": CONTAINER,
        "image": config.images.batch,
        "imagePullPolicy": config.images.pull_policy,
        "command": ["python3", "-m", "skirret_batch.worker"],
        "args": [
            f"--batch={record.id}",
            f"--store-file={internal.TENANT_DIR}/store.json",
            f"--token-file={internal.TENANT_DIR}/token",
            f"--gateway={config.gateway_url}",
            *arguments,
        ],
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
        ],
        "resources": without_empty(worker.resources.model_dump()),
        "volumeMounts": [TMP_MOUNT, TENANT_MOUNT, *(each.mount for each in secrets)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": CONTAINER_SECURITY,
    }
    pod: Object = {
        # Never: a failed pod stays, so that its last words can be read, and the next is a new one.
        "restartPolicy": "Never",
        "serviceAccountName": worker.service_account_name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(config.run_as_user),
        "containers": [without_empty(container)],
        "volumes": [
            TMP_VOLUME,
            tenant_volume("store.json", "token"),
            *(each.volume for each in secrets),
        ],
        "nodeSelector": worker.node_selector,
        "tolerations": plain(worker.tolerations),
        "imagePullSecrets": plain(config.image_pull_secrets),
    }
    return {
        "metadata": {
            "labels": {meta.MANAGED_BY: meta.MANAGED_BY_SKIRRET, **labels(batch)},
        },
        "spec": without_empty(pod),
    }


@dataclass(frozen=True, slots=True)
class _Secret:
    """One key of a Secret that the user names, as a file."""

    name: str
    key: str
    folder: str

    @property
    def volume(self) -> Object:
        items = [{"key": self.key, "path": self.key}]
        return {"name": self._volume, "secret": {"secretName": self.name, "items": items}}

    @property
    def mount(self) -> Object:
        return {"name": self._volume, "mountPath": self.folder, "readOnly": True}

    @property
    def _volume(self) -> str:
        return f"skirret-{PurePath(self.folder).name}"


def _extras(spec: BatchJobSpec) -> tuple[list[str], list[_Secret]]:
    """Arguments and files for what only some batches have."""
    arguments, secrets = [], []
    if spec.store_secret_ref:
        arguments.append(f"--uris-store-file={internal.URIS_DIR}/store.json")
        secrets.append(_Secret(spec.store_secret_ref.name, "store.json", internal.URIS_DIR))
    if spec.notify:
        arguments.append(f"--notify={spec.notify.url}")
        if spec.notify.secret_ref:
            arguments.append(f"--notify-key-file={internal.NOTIFY_DIR}/key")
            secrets.append(_Secret(spec.notify.secret_ref.name, "key", internal.NOTIFY_DIR))
    return arguments, secrets
