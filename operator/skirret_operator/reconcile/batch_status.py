"""The status of a BatchJob: its record as Kubernetes writes things, and what it waits for."""

from __future__ import annotations

from skirret_api.openai import Batch, BatchError
from skirret_api.parts import Object
from skirret_batch.record import Record
from skirret_operator.build.batch import CONTAINER, QUEUE_LABEL, is_queued
from skirret_operator.reconcile.cause import deepest
from skirret_operator.reconcile.conditions import Aspect, conditions, find
from skirret_operator.reconcile.observed import ObservedBatch
from skirret_operator.reconcile.plan import Blocked, Note, Plan
from skirret_operator.reconcile.risk import Risk, expiry
from skirret_operator.reconcile.times import epoch, in_words, rfc3339

_LOOK_AGAIN_SECONDS = 5.0
_TIMES = (
    ("created_at", "createdAt"),
    ("in_progress_at", "inProgressAt"),
    ("expires_at", "expiresAt"),
    ("finalizing_at", "finalizingAt"),
    ("completed_at", "completedAt"),
    ("failed_at", "failedAt"),
    ("expired_at", "expiredAt"),
    ("cancelling_at", "cancellingAt"),
    ("cancelled_at", "cancelledAt"),
)
_RISK = "ExpiryAtRisk"
_ENDS = ("completedAt", "failedAt", "expiredAt", "cancelledAt")


def report(
    batch: Object,
    record: Record | None,
    blocked: Blocked | None,
    now: float,
    is_suspended: bool = False,
    observed: ObservedBatch | None = None,
) -> Plan:
    """The part of a plan that tells; without a record, what was told of it before stays."""
    before: Object = batch.get("status", {})
    generation: int = batch["metadata"]["generation"]
    seen = observed or ObservedBatch()
    waits = is_suspended and record is not None and record.batch.status != "cancelling"
    risk = Risk(False)
    if record is not None:
        is_at_work = not waits and any(_runs(pod) for pod in seen.pods)
        risk = expiry(record, is_at_work, _was_at_risk(before), now)
    aspects = [*_aspects(record, blocked, is_suspended, seen), _at_risk(before, record, risk)]
    told = {k: v for k, v in before.items() if k not in ("conditions", "observedGeneration")}
    status: Object = {
        **(told if record is None else _projection(record, waits)),
        "observedGeneration": generation,
        "conditions": conditions(aspects, before.get("conditions", []), generation, now),
    }
    return Plan(
        status=status if status != before else None,
        note=_warning(before, aspects[-1]) or _note(before, aspects[0]),
        again=_sooner(_again(record, now, waits, seen), risk.within),
    )


def ended_at(status: Object) -> float:
    """When a batch ended, of the status that tells its end."""
    return max((epoch(status[name]) for name in _ENDS if name in status), default=float("inf"))


def _projection(record: Record, waits: bool) -> Object:
    batch = record.batch
    counts = batch.request_counts
    done = counts.completed + counts.failed
    found: Object = {
        "id": batch.id,
        "status": batch.status,
        "model": batch.model,
        "inputFileId": batch.input_file_id or None,
        "outputFileId": batch.output_file_id,
        "errorFileId": batch.error_file_id,
        "done": f"{done}/{counts.total}",
        "requestCounts": counts.model_dump(),
        "progress": _progress(record, done, waits),
        "usage": _usage(batch),
        "errors": [error.model_dump(exclude_none=True) for error in _errors(batch)],
        **{
            camel: rfc3339(at)
            for snake, camel in _TIMES
            if (at := getattr(batch, snake)) is not None
        },
    }
    return {name: value for name, value in found.items() if value not in (None, [])}


def _progress(record: Record, done: int, waits: bool) -> Object:
    total = record.batch.request_counts.total
    # What a worker last said of its speed; a suspended batch has none.
    speed, eta = record.progress.tokens_per_second, record.progress.eta_seconds
    found: Object = {
        "percent": round(100 * done / total, 1) if total else 0.0,
        "tokensPerSecond": 0.0 if waits else round(speed, 1),
    }
    if eta is not None and not waits and not record.is_terminal:
        found |= {"etaSeconds": round(eta, 1), "eta": in_words(eta)}
    return found


def _usage(batch: Batch) -> Object | None:
    usage = batch.usage
    if usage is None:
        return None
    return {
        "inputTokens": usage.input_tokens,
        "cachedTokens": usage.input_tokens_details.cached_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
    }


def _aspects(
    record: Record | None, blocked: Blocked | None, is_suspended: bool, observed: ObservedBatch
) -> list[Aspect]:
    status = record.batch.status if record else None
    failed = status in ("failed", "expired", "cancelled")
    if status == "completed" and record is not None:
        complete = Aspect("Complete", True, "Completed", _outcome(record.batch))
    elif failed:
        complete = Aspect("Complete", False, str(status).capitalize())
    elif blocked is not None:
        complete = Aspect("Complete", False, blocked.reason, blocked.message)
    elif is_suspended and status != "cancelling":
        complete = Aspect("Complete", False, "Suspended", "spec.suspend is set")
    else:
        complete = _at_work(record, observed)
    lost = blocked is not None and blocked.reason in ("RecordLost", "RecordTaken", "InvalidSpec")
    if failed and record is not None:
        failure = Aspect("Failed", True, str(status).capitalize(), _why(record.batch))
    elif lost and blocked is not None:
        failure = Aspect("Failed", True, blocked.reason, blocked.message)
    else:
        failure = Aspect("Failed", False, "AsExpected")
    suspended = is_suspended and (record is None or not record.is_terminal)
    return [
        complete,
        failure,
        Aspect("Suspended", suspended, "Suspended" if suspended else "NotSuspended"),
    ]


def _at_work(record: Record | None, observed: ObservedBatch) -> Aspect:
    """What the record says, unless no worker runs: then why not."""
    if any(_runs(pod) for pod in observed.pods) or record is None:
        words = record.batch.status.replace("_", " ").title().replace(" ", "") if record else ""
        return Aspect("Complete", False, words or "Pending", _task(record))
    for job in observed.jobs:
        if is_queued(job):
            queue = job["metadata"]["labels"][QUEUE_LABEL]
            return Aspect("Complete", False, "Queued", f"waits for its turn in the queue {queue}")
    for job in observed.jobs:
        if not observed.pods and (event := observed.events.get(job["metadata"]["name"])):
            reason, _, message = event.partition(": ")
            return Aspect("Complete", False, reason, message)
    cause = deepest(observed.pods, CONTAINER, observed.events, {})
    return Aspect("Complete", False, cause.reason, cause.message)


def _runs(pod: Object) -> bool:
    return any(
        "running" in container.get("state", {})
        for container in pod.get("status", {}).get("containerStatuses", [])
    )


def _task(record: Record | None) -> str:
    if record is None or record.batch.status != "in_progress":
        return ""
    batch = record.batch
    return f"{batch.request_counts.total} lines for {batch.model}"


def _outcome(batch: Batch) -> str:
    counts = batch.request_counts
    words = f"{counts.completed} of {counts.total} lines answered"
    return f"{words}, {counts.failed} failed" if counts.failed else words


def _at_risk(before: Object, record: Record | None, risk: Risk) -> Aspect:
    known = find(before, _RISK)
    if record is None and known is not None:  # nothing new is known
        return Aspect(_RISK, known["status"] == "True", known["reason"], known["message"])
    if record is None or not risk.holds:
        return Aspect(_RISK, False, "AsExpected")
    # No word of now: a message that changes with each look would be written at each look.
    closes = rfc3339(record.batch.expires_at)
    message = f"it will hardly be done by {closes}; the lines left then get batch_expired"
    return Aspect(_RISK, True, "ExpiryAtRisk", message)


def _was_at_risk(before: Object) -> bool:
    return (find(before, _RISK) or {}).get("status") == "True"


def _warning(before: Object, risk: Aspect) -> Note | None:
    if not risk.holds or _was_at_risk(before):
        return None
    return Note("Warning", risk.reason, risk.message)


def _sooner(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _again(record: Record | None, now: float, waits: bool, observed: ObservedBatch) -> float | None:
    """A worker that runs changes the record, and that is seen; only what hangs is looked at."""
    if record is None or record.is_terminal or any(_runs(pod) for pod in observed.pods):
        return None
    if (
        waits
        or any(map(is_queued, observed.jobs))
        or deepest(observed.pods, CONTAINER, observed.events, {}).is_watched
    ):
        return max(record.batch.expires_at - now, _LOOK_AGAIN_SECONDS)
    return _LOOK_AGAIN_SECONDS


def _errors(batch: Batch) -> list[BatchError]:
    return list(batch.errors.data) if batch.errors else []


def _why(batch: Batch) -> str:
    if batch.errors and batch.errors.data:
        first = batch.errors.data[0]
        where = f"line {first.line}: " if first.line else ""
        more = len(batch.errors.data) - 1
        return f"{where}{first.message}" + (f" (and {more} more)" if more else "")
    counts = batch.request_counts
    return f"{counts.completed + counts.failed} of {counts.total} lines were done"


def _note(before: Object, complete: Aspect) -> Note | None:
    known = find(before, "Complete")
    if complete.reason == "Starting" or (known and known["reason"] == complete.reason):
        return None
    normal = complete.holds or complete.reason in _NORMAL
    return Note("Normal" if normal else "Warning", complete.reason, complete.message)


_NORMAL = frozenset(
    {"Validating", "InProgress", "Finalizing", "Cancelling", "Cancelled", "Suspended", "Queued"}
)
