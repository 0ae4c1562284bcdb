"""How a revision takes over: which one the Deployment gets now, and with room for both or not.

What is remembered is in the cluster: the Deployment says which revision was let through and whether
it still surges; annotations of the ControllerRevision say whether it has served, or failed and why.
So an operator that is killed at any step goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skirret_api.meta import REVISION_LABEL
from skirret_api.model import InferenceModelSpec, Rollout
from skirret_api.parts import Object, seconds
from skirret_operator.build.preflight import CONTAINER as PREFLIGHT
from skirret_operator.build.preflight import job_name, preflight
from skirret_operator.build.revision import Revision
from skirret_operator.build.server import CONTAINER
from skirret_operator.reconcile.cause import Cause, deepest
from skirret_operator.reconcile.conditions import find
from skirret_operator.reconcile.difference import is_going
from skirret_operator.reconcile.observed import ObservedModel
from skirret_operator.reconcile.plan import Blocked
from skirret_operator.reconcile.times import epoch, in_words, sooner


@dataclass(frozen=True, slots=True)
class Course:
    target: Revision  # with what is newly known of it
    chosen: Revision  # what the Deployment is made from
    surges: bool
    preflight: Object | None = None  # a Job to be made
    idle_preflights: tuple[Object, ...] = ()  # Jobs nobody waits for any more
    waits: Cause | None = None  # for the preflight
    blocked: Blocked | None = None
    again: float | None = None  # seconds after which it may look otherwise without an event


def course(
    model: Object,
    spec: InferenceModelSpec,
    observed: ObservedModel,
    known: Sequence[Revision],
    target: Revision,
    now: float,
    patience: float,
) -> Course:
    """`patience`: seconds that a pod may wait for room beside the one that serves."""
    rollout = spec.rollout or Rollout()
    state = _State(observed, known, target, spec.replicas)
    target = _judged(model, target, state, rollout, now)
    job = _job(model, target, state)
    chosen, has_failed, awaits_job = target, target.failed is not None, False
    if has_failed:
        chosen = state.fallback or state.current or target
    elif state.needs_preflight and state.current and not _is_over(job, observed, now, patience):
        chosen, awaits_job = state.current, True
    is_idle = has_failed or (state.needs_preflight and not awaits_job)
    surges, again = _surging(rollout, chosen, observed, now, patience)
    left = int(max(1, seconds(rollout.progress_deadline) - (now - target.asked)))
    return Course(
        target,
        chosen,
        surges,
        preflight=preflight(model, target, state.node, left) if awaits_job and not job else None,
        idle_preflights=tuple(
            each
            for each in observed.preflights
            if not _has_ended(each) and (is_idle or each is not job)
        ),
        waits=_preparing(target, observed) if awaits_job else None,
        blocked=Blocked("RolloutFailed", f"revision {target.name}: {target.failed}")
        if has_failed
        else None,
        again=sooner(patience if awaits_job else None, again),
    )


@dataclass(frozen=True, slots=True)
class _State:
    observed: ObservedModel
    known: Sequence[Revision]
    target: Revision
    wanted: int

    @property
    def pods(self) -> list[Object]:
        return [pod for pod in self.observed.pods if not is_going(pod)]

    @property
    def of_target(self) -> list[Object]:
        return [pod for pod in self.pods if revision_of(pod) == self.target.name]

    @property
    def ready(self) -> list[Object]:
        return [pod for pod in self.pods if is_ready(pod)]

    @property
    def is_complete(self) -> bool:
        """Every pod that is wanted, and no other, answers with the target."""
        ready = [pod for pod in self.of_target if is_ready(pod)]
        return len(ready) >= max(1, self.wanted) and len(ready) == len(self.pods)

    @property
    def current(self) -> Revision | None:
        """What the Deployment is made from."""
        live = self.observed.deployment
        name = None if live is None else revision_of(live["spec"]["template"])
        return next((each for each in self.known if each.name == name), None)

    @property
    def fallback(self) -> Revision | None:
        return last_good(self.known, self.target)

    @property
    def needs_preflight(self) -> bool:
        """Whether something answers that a broken revision could harm."""
        current = self.current
        return (
            bool(self.ready)
            and current is not None
            and current.name != self.target.name
            and not self.of_target
        )

    @property
    def node(self) -> str | None:
        """Of a pod that is to be replaced."""
        return min((pod["spec"].get("nodeName", "") for pod in self.ready), default="") or None


def is_ready(pod: Object) -> bool:
    return _holds(pod, "Ready")


def revision_of(pod: Object) -> str | None:
    """Of a pod, or of a pod template."""
    found: str | None = pod["metadata"].get("labels", {}).get(REVISION_LABEL)
    return found


def last_good(known: Sequence[Revision], target: Revision) -> Revision | None:
    """What a target that fails gives way to."""
    good = [each for each in known if each.served and each.name != target.name]
    return max(good, key=lambda each: each.number, default=None)


def _judged(
    model: Object, target: Revision, state: _State, rollout: Rollout, now: float
) -> Revision:
    """The target, with a mark once it has served, or has failed and another can stand in for it."""
    if target.served or target.failed is not None:
        return target
    if state.is_complete:
        return replace(target, served=True)
    if state.needs_preflight:
        failure = _preflight_failure(_job(model, target, state), state.observed)
    else:
        failure = _failure(state, rollout, target, now) if rollout.rollback else None
    if failure is None or (state.fallback is None and state.current in (None, target)):
        return target
    return replace(target, failed=failure)


def _failure(state: _State, rollout: Rollout, target: Revision, now: float) -> str | None:
    if state.fallback is None or state.wanted == 0:
        return None
    cause = _cause(state)
    if cause.is_final:
        return f"{cause.reason}: {cause.message}"
    deadline = seconds(rollout.progress_deadline)
    if now - target.asked > deadline:
        return f"not there after {in_words(deadline)}: {cause.message}"
    return None


def _cause(state: _State) -> Cause:
    observed = state.observed
    hanging = [pod for pod in state.of_target if not is_ready(pod)]
    return deepest(hanging, CONTAINER, observed.events, observed.progress, observed.deployment)


# ---- the preflight


def _job(model: Object, target: Revision, state: _State) -> Object | None:
    name = job_name(model, target)
    return next((x for x in state.observed.preflights if x["metadata"]["name"] == name), None)


def _preflight_failure(job: Object | None, observed: ObservedModel) -> str | None:
    cause = deepest(observed.preflight_pods, PREFLIGHT, observed.events, {}, job)
    if (job is not None and _holds(job, "Failed")) or (observed.preflight_pods and cause.is_final):
        return f"{cause.reason}: {cause.message}"
    return None


def _is_over(job: Object | None, observed: ObservedModel, now: float, patience: float) -> bool:
    """Whether it has succeeded, or has found no place: then it must not hold the rollout up."""
    if job is None:
        return False
    if _holds(job, "Complete"):
        return True
    placed = any("nodeName" in pod["spec"] for pod in observed.preflight_pods)
    return not placed and now - epoch(job["metadata"]["creationTimestamp"]) >= patience


def _preparing(target: Revision, observed: ObservedModel) -> Cause:
    cause = deepest(observed.preflight_pods, PREFLIGHT, observed.events, {})
    return replace(
        cause,
        reason="Preparing",
        message=f"image and weights of revision {target.name}: {cause.message}",
    )


def _has_ended(job: Object) -> bool:
    return _holds(job, "Complete") or _holds(job, "Failed")


def _holds(live: Object, condition: str) -> bool:
    found = find(live.get("status", {}), condition)
    return found is not None and found["status"] == "True"


# ---- room for both


def _surging(
    rollout: Rollout, chosen: Revision, observed: ObservedModel, now: float, patience: float
) -> tuple[bool, float | None]:
    """Whether new pods come beside the old ones, and when that may turn out otherwise."""
    if rollout.strategy != "Auto":
        return rollout.strategy == "Surge", None
    live = observed.deployment
    if live is None:
        return False, None
    if revision_of(live["spec"]["template"]) != chosen.name:  # it begins
        answers = any(is_ready(pod) and not is_going(pod) for pod in observed.pods)
        return answers and not _is_for_one_node(observed.cache_claim), None
    if not _surges(live) or _holds(live, "ReplicaFailure"):
        return False, None
    waits = [now - since for pod in observed.pods if (since := _unplaced_since(pod, chosen))]
    if not waits:
        return True, None
    return max(waits) < patience, max(0.0, patience - max(waits))


def _unplaced_since(pod: Object, chosen: Revision) -> float | None:
    if revision_of(pod) != chosen.name or is_going(pod):
        return None
    placed = find(pod.get("status", {}), "PodScheduled")
    if placed is None or placed["status"] == "True":
        return None
    return epoch(placed.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"])


def _surges(live: Object) -> bool:
    numbers = live["spec"].get("strategy", {}).get("rollingUpdate") or {}
    return numbers.get("maxSurge") in (1, "1")


def _is_for_one_node(claim: Object | None) -> bool:
    modes = [] if claim is None else claim["spec"].get("accessModes", [])
    return bool(modes) and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes)
