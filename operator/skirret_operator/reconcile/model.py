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
from skirret_operator.build.server import deployment, labels, pod_template, service
from skirret_operator.reconcile.difference import differs, is_going, stamped
from skirret_operator.reconcile.model_status import Decision, report, revision_of
from skirret_operator.reconcile.observed import ObservedModel
from skirret_operator.reconcile.plan import Blocked, Plan, invalid


def reconcile(model: Object, observed: ObservedModel, config: OperatorConfig, now: float) -> Plan:
    if is_going(model):
        return Plan()
    try:
        spec = model_spec(model)
    except ValidationError as error:
        return report(model, observed, Decision(blocked=invalid(error)), config, now)

    template = _template(model, spec, config)
    known = [revisions.stored(live) for live in observed.revisions]
    target = _target(model, known, template)
    # Without a target, what serves goes on as the newest revision has it.
    chosen = target or max(known, key=lambda each: each.number, default=None)
    stop = _stop(model, observed)
    decision = Decision(
        wanted=spec.replicas,
        deadline=seconds((spec.rollout or Rollout()).progress_deadline),
        target=target,
        update_available=_is_newer(template, target),
        blocked=stop or (template if target is None and isinstance(template, Blocked) else None),
    )
    return replace(
        report(model, observed, decision, config, now),
        apply=() if stop or chosen is None else _apply(model, spec, observed, chosen),
        delete=_superseded(known, target, observed.pods),
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


def _target(
    model: Object, known: Sequence[Revision], template: Object | Blocked
) -> Revision | None:
    """The revision `spec` asks for: a stored one with its stored template, or a new one."""
    said = revisions.inputs(model)
    newest = max((each.number for each in known), default=0)
    for each in known:
        if each.name == revisions.digest(said):
            return each if each.number == newest else replace(each, number=newest + 1)
    return None if isinstance(template, Blocked) else Revision(said, template, newest + 1)


def _is_newer(template: Object | Blocked, target: Revision | None) -> bool:
    return target is not None and isinstance(template, dict) and template != target.template


def _stop(model: Object, observed: ObservedModel) -> Blocked | None:
    """Why nothing may be written."""
    if observed.refusal is not None:
        return Blocked("Refused", observed.refusal)
    for live in (observed.deployment, observed.service):
        if live is not None and not is_ours(live, labels(model)):
            what = f"{live['kind']} named {live['metadata']['name']}"
            return Blocked(
                "NameCollision",
                f"a {what} exists that is not Skirret's; remove it or rename the model",
            )
    return None


def _apply(
    model: Object, spec: InferenceModelSpec, observed: ObservedModel, chosen: Revision
) -> tuple[Object, ...]:
    """What differs from what there should be; the revision before the Deployment made from it."""
    rollout = spec.rollout or Rollout()
    wanted = [
        (chosen.live, controller_revision(model, chosen)),
        (observed.deployment, deployment(model, chosen.template, spec.replicas, rollout)),
        (observed.service, service(model)),
    ]
    return tuple(
        stamped(desired)
        for live, desired in wanted
        if not is_going(live) and differs(live, stamped(desired))
    )


def _superseded(
    known: Sequence[Revision], target: Revision | None, pods: Sequence[Object]
) -> tuple[Object, ...]:
    """Revisions beyond the last few, but none that is asked for or that a pod still runs."""
    needed = {revision_of(pod) for pod in pods} | ({target.name} if target else set())
    others = sorted((each for each in known if each.name not in needed), key=lambda r: -r.number)
    spare = max(0, revisions.KEPT - len(needed))
    return tuple(r.live for r in others[spare:] if r.live is not None and not is_going(r.live))
