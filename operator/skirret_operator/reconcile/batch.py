"""What a BatchJob needs next: a record, a Job that works on it, and its truth in the status."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from skirret_api.batchjob import BATCH_ID_LABEL, BatchJobSpec, batch_spec
from skirret_api.config import OperatorConfig
from skirret_api.openai import TERMINAL
from skirret_api.parts import Object
from skirret_batch.record import CustomResource, Record, id_for_cr, new_record
from skirret_operator.build.batch import attempt_of, is_queued, job
from skirret_operator.reconcile.batch_status import ended_at, report
from skirret_operator.reconcile.difference import is_going
from skirret_operator.reconcile.observed import ObservedBatch
from skirret_operator.reconcile.plan import Blocked, Plan, invalid
from skirret_operator.reconcile.times import epoch

# A worker that fails again and again is started again at once a few times, then every few seconds:
# sooner than the Job controller would, whose own back-off begins at ten.
_AT_ONCE = 3
_BETWEEN_SECONDS = 8.0
_LOOK_AGAIN_SECONDS = 5.0


def record_id(batch: Object) -> str:
    """The same for one BatchJob every time, so that a crash can't make a second record."""
    metadata = batch["metadata"]
    given = metadata.get("labels", {}).get(BATCH_ID_LABEL)
    known: str | None = batch.get("status", {}).get("id") or given
    return known or id_for_cr(metadata["uid"], epoch(metadata["creationTimestamp"]))


def has_ended(batch: Object) -> bool:
    """Whether the status already tells the end, which never changes."""
    return batch.get("status", {}).get("status") in TERMINAL


def after_the_end(batch: Object, now: float) -> Plan | None:
    """Some time after its end the object goes; its record and files do not. None: it lives."""
    if not has_ended(batch):
        return None
    kept = batch["spec"]["ttlSecondsAfterFinished"]  # has a default
    late = now - ended_at(batch["status"]) > kept
    return Plan(delete=(batch,) if late and not is_going(batch) else ())


def reconcile(batch: Object, observed: ObservedBatch, config: OperatorConfig, now: float) -> Plan:
    if is_going(batch):
        return Plan()
    if (plan := after_the_end(batch, now)) is not None:
        # Its worker may still be telling the end to `notify`.
        is_told = not any(job.get("status", {}).get("active") for job in observed.jobs)
        return plan if is_told or not plan.delete else Plan(again=_LOOK_AGAIN_SECONDS)
    try:
        spec = batch_spec(batch)
        record = observed.record or _new_record(batch, spec)
    except ValidationError as error:
        return report(batch, None, invalid(error), now)
    except ValueError as error:
        return report(batch, None, Blocked("InvalidSpec", str(error)), now)
    if blocked := _blocked(batch, record, observed):
        return report(batch, None, blocked, now)

    told = report(batch, record, None, now, spec.suspend, observed)
    work = _work(batch, spec, record, observed, config, now)
    return Plan(
        record=record if observed.record is None else None,
        apply=work.apply,
        delete=work.delete,
        status=told.status,
        note=told.note,
        again=told.again if work.again is None else work.again,
    )


def _blocked(batch: Object, record: Record, observed: ObservedBatch) -> Blocked | None:
    if observed.trouble is not None:
        return Blocked("StoreUnavailable", observed.trouble)
    if observed.record is None and batch.get("status", {}).get("id"):
        return Blocked("RecordLost", "its record is gone from the store")
    if record.cr is not None and record.cr.uid != batch["metadata"]["uid"]:
        return Blocked("RecordTaken", f"{record.id} belongs to the BatchJob {record.cr.name}")
    if observed.refusal is not None:
        return Blocked("Refused", observed.refusal)
    return None


def _work(
    batch: Object,
    spec: BatchJobSpec,
    record: Record,
    observed: ObservedBatch,
    config: OperatorConfig,
    now: float,
) -> Plan:
    """One Job at a time works on a live record."""
    if record.is_terminal:
        return Plan()
    # A batch that must end is ended by a worker too, suspended or queued as it may be.
    must_end = record.batch.status == "cancelling" or now >= record.batch.expires_at
    jobs = sorted(observed.jobs, key=attempt_of)
    latest = jobs[-1] if jobs else None
    if spec.suspend and not must_end:
        return Plan(delete=tuple(each for each in jobs if not is_going(each)))
    if is_going(latest):
        return Plan()
    if latest is not None and not (must_end and is_queued(latest)):
        if not _has_stopped(latest):
            return Plan()
        wait = _stopped_at(latest, observed.pods) + _pause(attempt_of(latest)) - now
        if wait > 0:
            return Plan(again=wait)
    attempt = attempt_of(latest) + 1 if latest else 1
    queue = None if must_end else spec.queue_name
    return Plan(
        apply=(job(batch, spec, record, config, attempt, queue),),
        delete=tuple(each for each in jobs if not is_going(each)),
    )


def _new_record(batch: Object, spec: BatchJobSpec) -> Record:
    """Raises ValueError for what the batch code can't do."""
    metadata = batch["metadata"]
    return new_record(
        record_id(batch),
        now=epoch(metadata["creationTimestamp"]),
        endpoint=spec.endpoint,
        completion_window=spec.completion_window,
        input_file_id=spec.input.file_id,
        input_uri=spec.input.uri,
        output_uri=spec.output.uri if spec.output else None,
        metadata=spec.metadata,
        parallelism=spec.parallelism,
        priority=spec.priority,
        cr=CustomResource(
            namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"]
        ),
        created_by="cr",
    )


def _has_stopped(live: Object) -> bool:
    """Whether no worker runs nor will soon, though the record lives."""
    if live["spec"].get("suspend"):
        return False
    status = live.get("status", {})
    ended = status.get("failed", 0) or status.get("succeeded", 0)
    return bool(ended) and not status.get("active", 0)


def _stopped_at(live: Object, pods: Sequence[Object]) -> float:
    name = live["metadata"]["name"]
    times = [
        epoch(container["state"]["terminated"]["finishedAt"])
        for pod in pods
        if any(owner["name"] == name for owner in pod["metadata"].get("ownerReferences", []))
        for container in pod.get("status", {}).get("containerStatuses", [])
        if container.get("state", {}).get("terminated", {}).get("finishedAt")
    ]
    return max(times, default=epoch(live["metadata"]["creationTimestamp"]))


def _pause(attempts: int) -> float:
    return 0.0 if attempts < _AT_ONCE else _BETWEEN_SECONDS
