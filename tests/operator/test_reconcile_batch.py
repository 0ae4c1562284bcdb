"""BatchJob: observed in, plan out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skirret_api.openai import BatchError, BatchErrors, BatchUsage, RequestCounts
from skirret_api.parts import Object
from skirret_batch.record import (
    CustomResource,
    Progress,
    Record,
    cancel,
    discard,
    fail,
    move,
    new_record,
    start,
)
from skirret_operator.reconcile.batch import reconcile, record_id
from skirret_operator.reconcile.observed import ObservedBatch
from skirret_operator.reconcile.plan import Plan
from skirret_operator.reconcile.times import epoch, rfc3339
from skirret_operator.testing.objects import CREATED, NAMESPACE, NOW, batch, config, ended, pod
from skirret_operator.testing.objects import container as container_status

DAY = 86_400


def decide(job: Object, observed: ObservedBatch | None = None, now: float = NOW) -> Plan:
    return reconcile(job, observed or ObservedBatch(), config(), now)


def record(job: Object) -> Record:
    """As the operator makes it for this BatchJob."""
    made = decide(job).record
    assert made is not None
    return made


def at_work(job: Object, attempt: int = 1, **status: Any) -> ObservedBatch:
    """One Job made for a live record."""
    known = ObservedBatch(record=record(job))
    (made,) = decide(job, known).apply
    made["metadata"] |= {
        "name": f"summaries-{attempt}",
        "uid": f"uid-{attempt}",
        "creationTimestamp": CREATED,
        "annotations": {"skirret.dev/attempt": str(attempt)},
    }
    return replace(known, jobs=[{**made, "status": status}])


def told(job: Object, plan: Plan) -> Object:
    return {**job, "status": plan.status or job.get("status", {})}


def condition(plan: Plan, kind: str) -> Object:
    assert plan.status is not None
    found: Object = next(each for each in plan.status["conditions"] if each["type"] == kind)
    return found


def test_a_new_batch_gets_its_record_and_its_first_job() -> None:
    plan = decide(batch(output={"uri": "s3://bucket/out"}, metadata={"team": "a"}))
    assert plan.record is not None
    assert plan.record.input_uri == "s3://bucket/in.jsonl"
    assert plan.record.output_uri == "s3://bucket/out"
    assert plan.record.batch.metadata == {"team": "a"}
    assert plan.record.cr == CustomResource(
        namespace=NAMESPACE, name="summaries", uid="uid-summaries"
    )
    (made,) = plan.apply
    assert (made["kind"], made["metadata"]["name"]) == ("Job", "summaries-1")


def test_the_window_opens_when_the_object_was_made() -> None:
    made = record(batch(completionWindow="2h"))
    assert made.batch.created_at == epoch(CREATED)
    assert made.batch.expires_at == epoch(CREATED) + 7200


def test_a_record_has_one_id_however_often_it_is_made() -> None:
    assert record_id(batch()) == record_id(batch()) == record(batch()).id
    other = batch()
    other["metadata"]["uid"] = "another"
    assert record_id(other) != record_id(batch())


def test_a_batch_of_the_api_keeps_its_id() -> None:
    job = batch()
    job["metadata"]["labels"] = {"skirret.dev/batch-id": "batch_0123"}
    assert record_id(job) == "batch_0123"


def test_a_batch_at_work_is_left_alone() -> None:
    job = batch()
    seen = at_work(job, active=1)
    again = decide(told(job, decide(job, seen)), seen)
    assert not again.changes_anything


def test_a_job_whose_worker_died_is_replaced_at_once() -> None:
    job = batch()
    plan = decide(job, at_work(job, failed=1))
    (made,) = plan.apply
    assert made["metadata"]["name"] == "summaries-2"
    assert [each["metadata"]["name"] for each in plan.delete] == ["summaries-1"]


def test_a_job_that_ended_though_its_batch_did_not_is_replaced() -> None:
    job = batch()
    (made,) = decide(job, at_work(job, succeeded=1)).apply
    assert made["metadata"]["name"] == "summaries-2"


def test_a_job_with_a_running_worker_beside_a_dead_one_is_left_alone() -> None:
    job = batch(parallelism=2)
    plan = decide(job, at_work(job, failed=1, active=1))
    assert plan.apply == ()
    assert plan.delete == ()


def test_a_worker_that_fails_again_and_again_gets_a_pause() -> None:
    job = batch()
    seen = at_work(job, attempt=4, failed=1)
    dead = pod("w", containerStatuses=[container_status("worker", terminated=ended(1, "boom"))])
    dead["metadata"]["ownerReferences"] = [{"name": "summaries-4"}]
    seen = replace(seen, pods=[dead])
    soon = decide(job, seen, epoch(CREATED) + 1)
    assert soon.apply == ()
    assert soon.again == 7
    assert condition(soon, "Complete")["message"] == "exit code 1: boom"
    later = decide(job, seen, epoch(CREATED) + 8)
    assert later.apply[0]["metadata"]["name"] == "summaries-5"


def test_a_job_that_is_going_is_awaited() -> None:
    job = batch()
    seen = at_work(job, failed=1)
    seen.jobs[0]["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert decide(job, seen).apply == ()


def test_a_suspended_batch_has_no_job() -> None:
    job = batch(suspend=True)
    assert decide(job).apply == ()
    running = at_work(batch(), active=1)
    plan = decide(job, running)
    assert plan.delete == tuple(running.jobs)
    assert condition(plan, "Suspended")["status"] == "True"


def test_a_suspended_batch_waits_for_its_window_to_close() -> None:
    job = batch(suspend=True)
    seen = ObservedBatch(record=record(job))
    at_risk = decide(job, seen).again
    assert at_risk == epoch(CREATED) + 0.9 * DAY - NOW + 1
    late = epoch(CREATED) + 0.95 * DAY
    assert decide(job, seen, late).again == 0.05 * DAY


def test_a_batch_cancelled_while_suspended_is_ended_by_a_worker() -> None:
    job = batch(suspend=True, queueName="gpus")
    cancelled = cancel(record(job), NOW)
    (made,) = decide(job, ObservedBatch(record=cancelled)).apply
    assert "kueue.x-k8s.io/queue-name" not in made["metadata"]["labels"]


def test_a_batch_that_expired_while_suspended_is_ended_by_a_worker() -> None:
    job = batch(suspend=True)
    seen = ObservedBatch(record=record(job))
    (made,) = decide(job, seen, epoch(CREATED) + DAY).apply
    assert made["metadata"]["name"] == "summaries-1"


def test_a_batch_cancelled_in_a_queue_leaves_the_queue() -> None:
    job = batch(queueName="gpus")
    seen = at_work(job)
    assert seen.jobs[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    seen.jobs[0]["spec"]["suspend"] = True
    assert seen.record is not None
    assert decide(job, seen).apply == ()
    (made,) = decide(job, replace(seen, record=cancel(seen.record, NOW))).apply
    assert made["metadata"]["name"] == "summaries-2"
    assert "kueue.x-k8s.io/queue-name" not in made["metadata"]["labels"]


def test_an_ended_batch_gets_no_more_jobs() -> None:
    job = batch()
    seen = at_work(job, failed=1)
    assert seen.record is not None
    assert decide(job, replace(seen, record=discard(seen.record, NOW))).apply == ()


def test_the_status_is_the_record_in_kubernetes_words() -> None:
    job = batch()
    working = start(record(job), model="smollm2", total=500, now=NOW)
    counted = working.model_copy(
        update={
            "batch": working.batch.model_copy(
                update={
                    "request_counts": RequestCounts(total=500, completed=400, failed=12),
                    "usage": BatchUsage(input_tokens=10, output_tokens=20, total_tokens=30),
                }
            ),
            "progress": Progress(tokens_per_second=123.456, eta_seconds=200),
        }
    )
    status = decide(job, ObservedBatch(record=counted)).status
    assert status is not None
    assert status["status"] == "in_progress"
    assert status["model"] == "smollm2"
    assert status["done"] == "412/500"
    assert status["requestCounts"] == {"total": 500, "completed": 400, "failed": 12}
    assert status["progress"] == {
        "percent": 82.4,
        "tokensPerSecond": 123.5,
        "etaSeconds": 200,
        "eta": "3m20s",
    }
    assert status["inProgressAt"] == rfc3339(NOW)
    assert status["usage"]["outputTokens"] == 20


def working(job: Object, eta: float, done: int = 10) -> ObservedBatch:
    """A worker runs, and says how long the rest takes."""
    known = start(record(job), model="smollm2", total=500, now=NOW)
    progress = Progress(tokens_per_second=50, eta_seconds=eta)
    worker = pod("w", containerStatuses=[container_status("worker", running={})])
    return replace(
        at_work(job, active=1),
        record=known.model_copy(update={"progress": progress}),
        pods=[worker],
    )


def test_a_batch_that_will_not_be_done_in_time_is_told_once() -> None:
    job = batch(completionWindow="1h")  # 2,800 s of it are left
    assert condition(decide(job, working(job, eta=2700)), "ExpiryAtRisk")["status"] == "False"
    known = told(job, decide(job, working(job, eta=2000)))
    plan = decide(known, working(job, eta=3000))
    assert condition(plan, "ExpiryAtRisk")["status"] == "True"
    assert plan.note is not None
    assert (plan.note.type, plan.note.reason) == ("Warning", "ExpiryAtRisk")
    still = decide(told(job, plan), working(job, eta=2700))
    assert still.note is None
    assert condition(still, "ExpiryAtRisk")["status"] == "True"
    assert not decide(told(job, still), working(job, eta=2700), NOW + 5).changes_anything
    relieved = decide(told(job, plan), working(job, eta=2000))
    assert condition(relieved, "ExpiryAtRisk")["status"] == "False"


def test_a_batch_nobody_works_on_is_at_risk_in_the_last_tenth_of_its_window() -> None:
    job = batch(suspend=True)
    seen = ObservedBatch(record=record(job))
    early, late = (decide(job, seen, epoch(CREATED) + part * DAY) for part in (0.89, 0.91))
    assert condition(early, "ExpiryAtRisk")["status"] == "False"
    assert condition(late, "ExpiryAtRisk")["status"] == "True"


def test_a_store_that_is_away_changes_nothing_about_the_risk() -> None:
    job = batch(completionWindow="1h")
    known = told(job, decide(job, working(job, eta=9000)))
    plan = decide(known, ObservedBatch(trouble="away"))
    assert condition(plan, "ExpiryAtRisk")["status"] == "True"


def test_a_suspended_batch_has_no_speed_and_no_eta() -> None:
    job = batch()
    status = decide({**job, "spec": {**job["spec"], "suspend": True}}, working(job, 60)).status
    assert status is not None
    assert status["progress"] == {"percent": 0.0, "tokensPerSecond": 0.0}


def test_the_start_is_told_with_what_there_is_to_do() -> None:
    job = batch()
    plan = decide(job, working(job, eta=60))
    assert plan.note is not None
    assert (plan.note.type, plan.note.reason, plan.note.message) == (
        "Normal",
        "InProgress",
        "500 lines for smollm2",
    )


def test_a_batch_in_a_queue_says_so() -> None:
    job = batch(queueName="gpus")
    seen = at_work(job, failed=1)  # Kueue took its pods away
    seen.jobs[0]["spec"]["suspend"] = True
    plan = decide(job, seen)
    assert plan.apply == ()
    complete = condition(plan, "Complete")
    assert (complete["reason"], complete["message"]) == (
        "Queued",
        "waits for its turn in the queue gpus",
    )


def test_a_job_that_may_have_no_pods_says_why() -> None:
    job = batch()
    words = 'pods "summaries-1-0-x" is forbidden: exceeded quota: small'
    seen = replace(at_work(job), events={"summaries-1": f"FailedCreate: {words}"})
    complete = condition(decide(job, seen), "Complete")
    assert (complete["reason"], complete["message"]) == ("FailedCreate", words)


def test_a_worker_that_fits_nowhere_is_told() -> None:
    job = batch()
    words = "0/3 nodes are available: 3 Insufficient cpu."
    unplaced = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": words,
    }
    seen = replace(at_work(job, active=1), pods=[pod("w", conditions=[unplaced])])
    seen.pods[0]["status"]["containerStatuses"] = []
    complete = condition(decide(job, seen), "Complete")
    assert (complete["reason"], complete["message"]) == ("Unschedulable", words)


def test_a_completed_batch_is_complete() -> None:
    job = batch()
    done = move(
        move(start(record(job), model="m", total=1, now=NOW), "finalizing", NOW), "completed", NOW
    )
    plan = decide(job, ObservedBatch(record=done))
    complete = condition(plan, "Complete")
    assert (complete["status"], complete["message"]) == ("True", "0 of 1 lines answered")
    assert condition(plan, "Failed")["status"] == "False"


def test_a_refused_input_is_told_with_its_first_error() -> None:
    job = batch()
    errors = [
        BatchError(code="invalid_json_line", message="not JSON", line=3),
        BatchError(code="invalid_json_line", message="not JSON", line=4),
    ]
    plan = decide(job, ObservedBatch(record=fail(record(job), errors, NOW)))
    failed = condition(plan, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "Failed")
    assert failed["message"] == "line 3: not JSON (and 1 more)"
    assert plan.status is not None
    assert plan.status["errors"][0] == {
        "code": "invalid_json_line",
        "message": "not JSON",
        "line": 3,
    }
    assert BatchErrors(data=errors).data[0].line == 3


def test_an_ended_batch_needs_no_record_any_more() -> None:
    job = batch()
    over = told(job, decide(job, ObservedBatch(record=discard(record(job), NOW))))
    assert decide(over, ObservedBatch(trouble="the store is gone"), NOW + DAY) == Plan()


def test_an_ended_batch_is_removed_after_its_ttl() -> None:
    job = batch(ttlSecondsAfterFinished=60)
    over = told(job, decide(job, ObservedBatch(record=discard(record(job), NOW))))
    assert decide(over, now=NOW + 59).delete == ()
    assert decide(over, now=NOW + 61).delete == (over,)
    telling = replace(at_work(batch(), active=1), record=None)  # the end, to whom it may concern
    assert decide(over, telling, NOW + 61) == Plan(again=5)


def test_a_store_that_does_not_answer_is_told_and_keeps_what_was_told() -> None:
    job = batch()
    known = told(job, decide(job, ObservedBatch(record=record(job))))
    plan = decide(known, ObservedBatch(trouble="connection refused"))
    complete = condition(plan, "Complete")
    assert (complete["reason"], complete["message"]) == ("StoreUnavailable", "connection refused")
    assert plan.status is not None
    assert plan.status["id"] == known["status"]["id"]
    assert plan.record is None
    assert plan.apply == ()


def test_a_lost_record_is_told_and_not_made_again() -> None:
    job = batch()
    known = told(job, decide(job, ObservedBatch(record=record(job))))
    plan = decide(known)
    assert plan.record is None
    assert condition(plan, "Failed")["reason"] == "RecordLost"


def test_a_record_of_another_object_is_not_touched() -> None:
    job = batch()
    theirs = record(job).model_copy(
        update={"cr": CustomResource(namespace=NAMESPACE, name="other", uid="other")}
    )
    plan = decide(job, ObservedBatch(record=theirs))
    assert condition(plan, "Failed")["reason"] == "RecordTaken"
    assert plan.apply == ()


@pytest.mark.parametrize("window", ["0h", "30d", "soon"])
def test_a_window_we_do_not_have_is_told(window: str) -> None:
    plan = decide(batch(completionWindow=window))
    assert condition(plan, "Failed")["reason"] == "InvalidSpec"
    assert plan.record is None


def test_a_spec_of_another_release_is_told_and_not_a_crash() -> None:
    plan = decide(batch(parallelism="many"))
    assert condition(plan, "Failed")["message"].startswith("spec.parallelism: ")


def test_a_batch_of_the_api_that_was_made_before_its_object_is_taken_up() -> None:
    job = batch()
    job["metadata"]["labels"] = {"skirret.dev/batch-id": "batch_0123"}
    by_api = new_record(
        "batch_0123", now=NOW, endpoint="/v1/chat/completions", input_file_id="file-1"
    )
    plan = decide(job, ObservedBatch(record=by_api))
    assert plan.record is None
    assert plan.apply[0]["metadata"]["name"] == "summaries-1"
