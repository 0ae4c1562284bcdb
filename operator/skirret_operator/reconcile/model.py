"""What an InferenceModel needs next: its revision, Deployment and Service, and a true status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import ValidationError

from skirret_api.config import OperatorConfig, Profile
from skirret_api.model import InferenceModelSpec, Rollout, model_spec
from skirret_api.parts import Object, seconds
from skirret_operator.build import revision as revisions
from skirret_operator.build.metadata import is_ours
from skirret_operator.build.revision import Revision, controller_revision
from skirret_operator.build.server import (
    deployment,
    disruption_budget,
    labels,
    pod_template,
    service,
)
from skirret_operator.reconcile.difference import differs, is_going, stamped
from skirret_operator.reconcile.model_status import Decision, report
from skirret_operator.reconcile.observed import ObservedModel
from skirret_operator.reconcile.plan import Blocked, Plan, invalid
from skirret_operator.reconcile.rollout import Course, course, last_good, revision_of


def reconcile(model: Object, observed: ObservedModel, config: OperatorConfig, now: float) -> Plan:
    if is_going(model):
        return Plan()
    try:
        spec = model_spec(model)
    except ValidationError as error:
        return report(model, observed, Decision(blocked=invalid(error)), config, now)

    template = _template(model, spec, config)
    known = [revisions.stored(live) for live in observed.revisions]
    asked = _asked(model, known, template, now)
    # Without a target, what serves goes on as the newest revision has it.
    target = asked or max(known, key=lambda each: each.number, default=None)
    stop = _stop(model, observed)
    way = None
    if target is not None and stop is None:
        patience = config.timings.surge_seconds
        way = course(model, spec, observed, known, target, now, patience)
    blocked = stop or (template if asked is None and isinstance(template, Blocked) else None)
    decision = Decision(
        wanted=spec.replicas,
        deadline=seconds((spec.rollout or Rollout()).progress_deadline),
        target=way.target if way and asked else asked,
        update_available=_is_newer(template, asked),
        waits=way.waits if way else None,
        blocked=blocked or (way.blocked if way else None),
        again=way.again if way else None,
    )
    plan = report(model, observed, decision, config, now)
    if way is None:
        return plan
    return replace(
        plan,
        apply=_apply(model, spec, observed, way),
        delete=(
            *way.idle_preflights,
            *_needless_budget(spec, observed),
            *_superseded(known, way, observed),
        ),
    )


def _template(model: Object, spec: InferenceModelSpec, config: OperatorConfig) -> Object | Blocked:
    """The pod that this Skirret, with these profiles, makes of `spec`."""
    name = spec.profile or (None if spec.resources else config.default_profile)
    profile = Profile() if name is None else config.profiles.get(name)
    if profile is None:
        there = ", ".join(sorted(config.profiles)) or "none"
        return Blocked("ProfileNotFound", f"no profile is named {name}; there are: {there}")
    digest = revisions.digest(revisions.inputs(model))
    return pod_template(model, spec, profile, config, digest)


def _asked(
    model: Object, known: Sequence[Revision], template: Object | Blocked, now: float
) -> Revision | None:
    """The revision `spec` asks for: a stored one with its stored template, or a new one."""
    said = revisions.inputs(model)
    newest = max((each.number for each in known), default=0)
    for each in known:
        if each.name == revisions.digest(said):
            return each if each.number == newest else each.again(newest + 1, now)
    return None if isinstance(template, Blocked) else Revision(said, template, newest + 1, now)


def _is_newer(template: Object | Blocked, target: Revision | None) -> bool:
    return target is not None and isinstance(template, dict) and template != target.template


def _stop(model: Object, observed: ObservedModel) -> Blocked | None:
    """Why nothing may be written."""
    if observed.refusal is not None:
        return Blocked("Refused", observed.refusal)
    for live in (observed.deployment, observed.service, observed.budget):
        if live is not None and not is_ours(live, labels(model)):
            what = f"{live['kind']} named {live['metadata']['name']}"
            return Blocked(
                "NameCollision",
                f"a {what} exists that is not Skirret's; remove it or rename the model",
            )
    return None


def _apply(
    model: Object, spec: InferenceModelSpec, observed: ObservedModel, way: Course
) -> tuple[Object, ...]:
    """What differs from what there should be; the revision before the Deployment made from it."""
    rollout, template = spec.rollout or Rollout(), way.chosen.template
    wanted = [
        (way.target.live, controller_revision(model, way.target)),
        (
            observed.deployment,
            deployment(model, template, spec.replicas, rollout, surges=way.surges),
        ),
        (observed.service, service(model)),
    ]
    if way.preflight is not None:
        wanted.append((None, way.preflight))
    if spec.replicas > 1:
        wanted.append((observed.budget, disruption_budget(model)))
    return tuple(
        stamped(desired)
        for live, desired in wanted
        if not is_going(live) and differs(live, stamped(desired))
    )


def _needless_budget(spec: InferenceModelSpec, observed: ObservedModel) -> tuple[Object, ...]:
    budget = observed.budget
    return () if budget is None or spec.replicas > 1 or is_going(budget) else (budget,)


def _superseded(
    known: Sequence[Revision], way: Course, observed: ObservedModel
) -> tuple[Object, ...]:
    """Revisions beyond the last few, but none that is needed still, or that a pod runs."""
    needed = {revision_of(pod) for pod in observed.pods} | {way.target.name, way.chosen.name}
    good = last_good(known, way.target)
    if good is not None and not way.target.served:
        needed.add(good.name)
    others = sorted((r for r in known if r.name not in needed), key=_number, reverse=True)
    spare = max(0, revisions.KEPT - len(needed))
    return tuple(r.live for r in others[spare:] if r.live is not None and not is_going(r.live))


def _number(revision: Revision) -> int:
    return revision.number
