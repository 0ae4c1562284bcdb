"""The status of an InferenceModel: whether its spec is served, and if not, the deepest cause."""

from __future__ import annotations

from dataclasses import dataclass

from skirret_api.config import OperatorConfig
from skirret_api.meta import MODEL_LABEL
from skirret_api.model import served_names
from skirret_api.parts import Object
from skirret_operator.build.revision import Revision
from skirret_operator.build.server import CONTAINER
from skirret_operator.reconcile.cause import Cause, Progress, deepest
from skirret_operator.reconcile.conditions import Aspect, conditions, find
from skirret_operator.reconcile.difference import is_going
from skirret_operator.reconcile.observed import ObservedModel
from skirret_operator.reconcile.plan import Blocked, Note, Plan
from skirret_operator.reconcile.rollout import is_ready, revision_of
from skirret_operator.reconcile.times import epoch, in_words, sooner

# Most of what a model waits for is told by a watch; the rest is looked up this often.
_LOOK_AGAIN_SECONDS = 5.0
# Reasons that time does not heal.
_FINAL = frozenset({"NameTaken", "DoesNotFit"})


@dataclass(frozen=True, slots=True)
class Decision:
    """What `spec` comes to."""

    wanted: int = 0
    deadline: float = 0
    target: Revision | None = None  # None: it can't be made
    update_available: bool = False
    waits: Cause | None = None  # for what comes before its pods
    blocked: Blocked | None = None
    again: float | None = None  # seconds


def report(
    model: Object, observed: ObservedModel, decision: Decision, config: OperatorConfig, now: float
) -> Plan:
    """The part of a plan that tells."""
    before: Object = model.get("status", {})
    pods = _Pods.of(observed, decision)
    left = decision.deadline - (now - _waits_since(decision, before, now))
    ready = _ready(model, observed, decision, pods)
    stalled = _stalled(decision, pods, ready, is_late=left < 0)
    aspects = [
        ready,
        _progressing(pods, stalled),
        stalled,
        Aspect("ScalingReady", True, "ReplicasBySpec"),
        _update_available(decision),
    ]
    generation: int = model["metadata"]["generation"]
    status: Object = {
        "observedGeneration": generation,
        "conditions": conditions(aspects, before.get("conditions", []), generation, now),
        "replicas": {
            "current": pods.current,
            "ready": pods.ready,
            "updated": pods.updated,
            "summary": f"{pods.ready}/{decision.wanted}",
        },
        "revisions": pods.revisions(),
        "url": f"{config.gateway_url}/v1",
        "selector": f"{MODEL_LABEL}={model['metadata']['name']}",
    }
    progress = pods.cause.progress
    if progress is not None and not pods.are_complete:
        status["load"] = _load(progress)
    return Plan(
        status=status if status != before else None,
        note=_note(find(before, "Ready"), ready),
        again=sooner(decision.again, _again(decision, pods, left, config)),
    )


@dataclass(frozen=True, slots=True)
class _Pods:
    """The pods there are, against those that `spec` wants."""

    wanted: int
    current: int
    ready: int  # of any revision
    updated: int  # of the target revision
    serving: int  # of the target revision, and ready
    target: str | None
    answering: str | None  # the revision that answers: the target as soon as it does
    cause: Cause  # why the updated ones that are not ready are not

    @classmethod
    def of(cls, observed: ObservedModel, decision: Decision) -> _Pods:
        pods = [pod for pod in observed.pods if not is_going(pod)]
        target = decision.target.name if decision.target else None
        ready = [pod for pod in pods if is_ready(pod)]
        updated = [pod for pod in pods if revision_of(pod) == target]
        answering = [revision_of(pod) for pod in ready]
        hanging = [pod for pod in updated if not is_ready(pod)]
        return cls(
            wanted=decision.wanted,
            current=len(pods),
            ready=len(ready),
            updated=len(updated),
            serving=answering.count(target),
            target=target,
            answering=target if target in answering else next(iter(answering), None),
            cause=decision.waits
            or deepest(hanging, CONTAINER, observed.events, observed.progress, observed.deployment),
        )

    @property
    def are_complete(self) -> bool:
        return self.serving >= self.wanted and self.serving == self.current

    def revisions(self) -> Object:
        names = {"serving": self.answering, "target": self.target}
        return {role: name for role, name in names.items() if name is not None}


def _ready(model: Object, observed: ObservedModel, decision: Decision, pods: _Pods) -> Aspect:
    meanwhile = ""
    if pods.answering not in (None, pods.target):
        meanwhile = f"; revision {pods.answering} serves meanwhile"
    if decision.blocked is not None:
        return Aspect("Ready", False, decision.blocked.reason, decision.blocked.message + meanwhile)
    if taken := _taken(model, observed):
        return Aspect("Ready", False, "NameTaken", taken)
    if decision.wanted == 0:
        return Aspect("Ready", False, "ScaledToZero", "spec.replicas is 0")
    if pods.serving == 0:
        return Aspect("Ready", False, pods.cause.reason, pods.cause.message + meanwhile)
    if pods.serving < pods.wanted:
        few = f"{pods.serving} of {pods.wanted} replicas: {pods.cause.message}"
        return Aspect("Ready", True, "Serving", few)
    return Aspect("Ready", True, "Serving")


def _taken(model: Object, observed: ObservedModel) -> str | None:
    namespace, me = model["metadata"]["namespace"], model["metadata"]["name"]
    for name in served_names(model):
        older = observed.owners.get(name, me)
        if older != me:
            return (
                f"{name} belongs to the older {namespace}/{older}; "
                f"this one answers to {namespace}/{me}"
            )
    return None


def _stalled(decision: Decision, pods: _Pods, ready: Aspect, *, is_late: bool) -> Aspect:
    if decision.blocked is not None or ready.reason in _FINAL:
        return Aspect("Stalled", True, ready.reason, ready.message)
    if is_late and not pods.are_complete:
        late = f"not there after {in_words(decision.deadline)}: {pods.cause.message}"
        return Aspect("Stalled", True, "ProgressDeadlineExceeded", late)
    return Aspect("Stalled", False, "AsExpected")


def _waits_since(decision: Decision, before: Object, now: float) -> float:
    """When the model last got reason to be on its way: it ceased to serve, or was edited."""
    times = []
    if (ready := find(before, "Ready")) is not None:
        times.append(epoch(ready["lastTransitionTime"]))
    if decision.target is not None:
        times.append(decision.target.asked)
    return max(times, default=now)


def _progressing(pods: _Pods, stalled: Aspect) -> Aspect:
    if stalled.holds:
        return Aspect("Progressing", False, stalled.reason)
    if pods.are_complete:
        return Aspect("Progressing", False, "Complete")
    return Aspect("Progressing", True, pods.cause.reason, pods.cause.message)


def _update_available(decision: Decision) -> Aspect:
    if decision.update_available:
        words = "a restart would take a newer template; `kubectl skirret upgrade` does it"
        return Aspect("UpdateAvailable", True, "TemplateChanged", words)
    return Aspect("UpdateAvailable", False, "UpToDate")


def _again(decision: Decision, pods: _Pods, left: float, config: OperatorConfig) -> float | None:
    """When to look again at what no watch tells; and at the latest when the deadline has passed."""
    if pods.are_complete or (decision.blocked is not None and pods.ready == pods.current):
        return None
    if pods.cause.reason == "Loading":
        return config.timings.status_seconds
    if not pods.cause.is_watched:
        return _LOOK_AGAIN_SECONDS
    return max(left + 1, _LOOK_AGAIN_SECONDS) if left > 0 else None


def _load(progress: Progress) -> Object:
    said = {
        "percent": progress.percent,
        "etaSeconds": progress.eta_seconds,
        "bytesPerSecond": progress.bytes_per_second,
    }
    return {name: value for name, value in said.items() if value is not None}


def _note(before: Object | None, ready: Aspect) -> Note | None:
    """An Event when the reason of Ready changes; that a pod starts or loads is no news."""
    if ready.reason in _NO_NEWS or (before is not None and before["reason"] == ready.reason):
        return None
    normal = ready.holds or ready.reason == "ScaledToZero"
    return Note("Normal" if normal else "Warning", ready.reason, ready.message)


_NO_NEWS = frozenset({"Preparing", "Starting", "Loading"})
