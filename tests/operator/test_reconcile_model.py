"""InferenceModel: observed in, plan out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from skirret_api import meta
from skirret_api.parts import Object
from skirret_operator.build import revision as revisions
from skirret_operator.reconcile.cause import Progress
from skirret_operator.reconcile.difference import APPLIED, stamped
from skirret_operator.reconcile.model import reconcile
from skirret_operator.reconcile.observed import ObservedModel
from skirret_operator.reconcile.plan import Plan
from skirret_operator.reconcile.times import rfc3339
from skirret_operator.testing.objects import NAMESPACE, NOW, config, model, pod


def settle(
    desired: Object, observed: ObservedModel | None = None, **given: Any
) -> tuple[Object, ObservedModel]:
    """The model and its children after a plan was carried out as the API server would."""
    observed = replace(observed or ObservedModel(), **given)
    plan = reconcile(desired, observed, config(), NOW)
    found = {each["kind"]: json.loads(json.dumps(each)) for each in plan.apply}
    known = [r for r in observed.revisions if r not in plan.delete]
    if new := found.get("ControllerRevision"):
        new["metadata"]["creationTimestamp"] = rfc3339(NOW)
        known = [r for r in known if r["metadata"]["name"] != new["metadata"]["name"]] + [new]
    return {**desired, "status": plan.status or desired["status"]}, replace(
        observed,
        deployment=found.get("Deployment", observed.deployment),
        service=found.get("Service", observed.service),
        revisions=known,
    )


def target(observed: ObservedModel) -> str:
    newest = max(observed.revisions, key=lambda each: each["revision"])
    return revisions.stored(newest).name


def served(replicas: int = 1, **spec: Any) -> tuple[Object, ObservedModel]:
    """A model at rest, all of its pods ready."""
    desired, observed = settle(model(replicas=replicas, **spec))
    name = target(observed)
    pods = [pod(f"smollm2-{i}", revision=name, ready=True) for i in range(replicas)]
    return settle(desired, observed, pods=pods)


def condition(plan: Plan, kind: str) -> Object:
    assert plan.status is not None
    found: Object = next(each for each in plan.status["conditions"] if each["type"] == kind)
    return found


def image(plan: Plan) -> str:
    (deployment,) = [each for each in plan.apply if each["kind"] == "Deployment"]
    found: str = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    return found


def test_a_new_model_gets_its_revision_before_its_deployment_and_service() -> None:
    plan = reconcile(model(), ObservedModel(), config(), NOW)
    assert [each["kind"] for each in plan.apply] == [
        "ControllerRevision",
        "Deployment",
        "Service",
    ]


def test_everything_made_belongs_to_the_model() -> None:
    plan = reconcile(model(), ObservedModel(), config(), NOW)
    for each in plan.apply:
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("InferenceModel", "uid-smollm2")
        assert each["metadata"]["labels"][meta.MODEL_LABEL] == "smollm2"


def test_nothing_is_written_when_nothing_differs() -> None:
    plan = reconcile(*served(), config(), NOW + 100)
    assert not plan.changes_anything
    assert plan.note is None
    assert plan.again is None


def test_a_model_that_is_being_deleted_is_left_alone() -> None:
    going = model()
    going["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert reconcile(going, ObservedModel(), config(), NOW) == Plan()


@pytest.mark.parametrize(
    "edit",
    [
        {"replicas": 3},
        {"servedNames": ["gpt"]},
        {"rollout": {"strategy": "Surge"}},
        {"routing": {"strategy": "Auto"}},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_an_edit_that_does_not_shape_the_pod_makes_no_revision(edit: Object) -> None:
    desired, observed = served()
    edited = {**desired, "spec": {**desired["spec"], **edit}}
    plan = reconcile(edited, observed, config(), NOW)
    assert "ControllerRevision" not in [each["kind"] for each in plan.apply]
    for each in plan.apply:
        if each["kind"] == "PodDisruptionBudget":
            continue
        template = each["spec"]["template"]
        assert template == observed.deployment["spec"]["template"]  # type: ignore[index]


@pytest.mark.parametrize(
    "edit",
    [
        {"model": {"source": "pvc://models/other"}},
        {"resources": {"limits": {"memory": "8Gi"}}},
        {"server": {"contextLength": 1024}},
        {"cache": {"claimName": "weights"}},
        {"pod": {"env": [{"name": "A", "value": "b"}]}},
        {"templateRevision": 1},
        {"restartedAt": "2026-09-21T14:13:20Z"},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_an_edit_that_shapes_the_pod_makes_a_revision(edit: Object) -> None:
    desired, observed = served()
    edited = {**desired, "spec": {**desired["spec"], **edit}}
    plan = reconcile(edited, observed, config(), NOW)
    kinds = [each["kind"] for each in plan.apply]
    assert kinds == ["ControllerRevision", "Job"]  # the preflight; the Deployment comes after it
    assert plan.apply[0]["revision"] == 2


def test_a_new_image_restarts_nothing_and_shows_as_an_update() -> None:
    desired, observed = served()
    newer = config(images={"server": "skirret-server:2", "batch": "skirret:2"})
    plan = reconcile(desired, observed, newer, NOW)
    assert plan.apply == ()
    assert condition(plan, "UpdateAvailable")["status"] == "True"


def test_the_next_revision_takes_the_new_image() -> None:
    desired, observed = served()
    newer = config(images={"server": "skirret-server:2", "batch": "skirret:2"})
    edited = {**desired, "spec": {**desired["spec"], "templateRevision": 1}}
    plan = reconcile(edited, replace(observed, pods=[]), newer, NOW)
    assert image(plan) == "skirret-server:2"
    assert condition(plan, "UpdateAvailable")["status"] == "False"


def test_a_revert_takes_the_stored_template_and_not_a_new_one() -> None:
    first, observed = served()
    second = {**first, "spec": {**first["spec"], "server": {"contextLength": 1024}}}
    second, observed = settle(second, observed, pods=[])
    newer = config(images={"server": "skirret-server:2", "batch": "skirret:2"})
    plan = reconcile(first, observed, newer, NOW)
    assert image(plan) == "skirret-server:1"
    assert plan.apply[0]["revision"] == 3


def test_of_old_revisions_the_last_good_one_is_kept_and_the_newest() -> None:
    desired, observed = served()
    for length in (1024, 2048, 4096, 8192):
        edited = {**desired, "spec": {**desired["spec"], "server": {"contextLength": length}}}
        desired, observed = settle(edited, observed, pods=[])
    desired, observed = settle(desired, observed)
    assert [each["revision"] for each in observed.revisions] == [1, 4, 5]


def test_a_revision_that_a_pod_still_runs_is_kept() -> None:
    desired, observed = served()
    for length in (1024, 2048, 4096, 8192):
        edited = {**desired, "spec": {**desired["spec"], "server": {"contextLength": length}}}
        desired, observed = settle(edited, observed)
    desired, observed = settle(desired, observed)
    assert [each["revision"] for each in observed.revisions] == [1, 4, 5]


def test_a_deleted_service_comes_back() -> None:
    desired, observed = served()
    plan = reconcile(desired, replace(observed, service=None), config(), NOW)
    assert [each["kind"] for each in plan.apply] == ["Service"]


def test_somebody_elses_edit_of_the_replicas_is_reverted() -> None:
    desired, observed = served()
    assert observed.deployment is not None
    observed.deployment["spec"]["replicas"] = 5
    (deployment,) = reconcile(desired, observed, config(), NOW).apply
    assert deployment["spec"]["replicas"] == 1


def test_what_others_add_to_a_deployment_is_left() -> None:
    desired, observed = served()
    assert observed.deployment is not None
    observed.deployment["metadata"]["labels"]["team"] = "a"
    observed.deployment["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    assert not reconcile(desired, observed, config(), NOW).changes_anything


def test_a_deployment_that_is_being_deleted_is_awaited() -> None:
    desired, observed = served()
    assert observed.deployment is not None
    observed.deployment["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    observed.deployment["spec"]["replicas"] = 0
    assert reconcile(desired, observed, config(), NOW).apply == ()


def test_a_deployment_of_somebody_else_is_not_taken_over() -> None:
    foreign = {"kind": "Deployment", "metadata": {"name": "smollm2", "labels": {"app": "web"}}}
    plan = reconcile(model(), ObservedModel(deployment=foreign), config(), NOW)
    assert plan.apply == ()
    assert condition(plan, "Ready")["reason"] == "NameCollision"
    assert condition(plan, "Stalled")["status"] == "True"


def test_a_child_left_behind_by_a_model_of_the_same_name_is_adopted() -> None:
    _, observed = served()
    again = model()
    again["metadata"]["uid"] = "uid-of-another-life"
    plan = reconcile(again, observed, config(), NOW)
    assert {each["kind"] for each in plan.apply} == {"ControllerRevision", "Deployment", "Service"}
    assert image(plan) == "skirret-server:1"


def test_an_unknown_profile_is_told_with_those_there_are() -> None:
    plan = reconcile(model(profile="h100"), ObservedModel(), config(), NOW)
    ready = condition(plan, "Ready")
    assert ready["reason"] == "ProfileNotFound"
    assert ready["message"] == "no profile is named h100; there are: cpu"
    assert plan.apply == ()


def test_what_serves_goes_on_when_the_profile_is_gone() -> None:
    desired, observed = served()
    edited = {**desired, "spec": {**desired["spec"], "profile": "h100", "replicas": 2}}
    plan = reconcile(edited, observed, config(), NOW)
    deployment = next(each for each in plan.apply if each["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["template"] == observed.deployment["spec"]["template"]  # type: ignore[index]
    assert f"revision {target(observed)} serves" in condition(plan, "Ready")["message"]


def test_a_model_whose_profile_was_removed_keeps_its_stored_template() -> None:
    desired, observed = served()
    bare = config(profiles={}, defaultProfile=None)
    desired = {**desired, "spec": {**desired["spec"], "replicas": 0}}
    plan = reconcile(desired, observed, bare, NOW)
    assert [each["kind"] for each in plan.apply] == ["Deployment"]
    assert image(plan) == "skirret-server:1"
    assert condition(plan, "UpdateAvailable")["status"] == "True"


def test_a_write_the_api_server_refused_is_told_in_its_words() -> None:
    desired, observed = settle(model())
    refused = ObservedModel(refusal='Deployment.apps "smollm2" is invalid: spec.template')
    plan = reconcile(desired, refused, config(), NOW)
    assert condition(plan, "Ready")["reason"] == "Refused"
    assert "spec.template" in condition(plan, "Ready")["message"]
    assert plan.apply == ()


def test_a_spec_of_another_release_is_told_and_not_a_crash() -> None:
    plan = reconcile(model(replicas="two"), ObservedModel(), config(), NOW)
    ready = condition(plan, "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert ready["message"].startswith("spec.replicas: ")


# ---- status


def test_a_served_model_is_ready_for_its_generation() -> None:
    desired, _ = served()
    status = desired["status"]
    assert status["observedGeneration"] == 1
    assert status["replicas"] == {"current": 1, "ready": 1, "updated": 1, "summary": "1/1"}
    assert status["revisions"]["serving"] == status["revisions"]["target"]
    assert status["selector"] == "skirret.dev/model=smollm2"
    assert status["url"] == "http://skirret-gateway.skirret-system.svc:8080/v1"


def test_a_model_is_not_ready_while_only_the_old_revision_answers() -> None:
    desired, observed = served()
    edited = {**desired, "spec": {**desired["spec"], "server": {"contextLength": 1024}}}
    plan = reconcile(edited, observed, config(), NOW)
    ready = condition(plan, "Ready")
    assert ready["status"] == "False"
    assert f"revision {target(observed)} serves meanwhile" in ready["message"]
    assert condition(plan, "Progressing")["status"] == "True"


def test_one_ready_replica_of_two_serves_and_says_what_the_other_waits_for() -> None:
    desired, observed = settle(model(replicas=2))
    name = target(observed)
    pods = [pod("a", revision=name, ready=True), pod("b", revision=name)]
    plan = reconcile(desired, replace(observed, pods=pods), config(), NOW)
    ready = condition(plan, "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Serving")
    assert ready["message"] == "1 of 2 replicas: the server has started"
    assert plan.status is not None
    assert plan.status["replicas"]["summary"] == "1/2"


def test_a_terminating_pod_does_not_count() -> None:
    desired, observed = served()
    observed.pods[0]["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    plan = reconcile(desired, observed, config(), NOW)
    assert condition(plan, "Ready")["status"] == "False"


def test_no_replicas_is_no_fault() -> None:
    plan = reconcile(model(replicas=0), ObservedModel(), config(), NOW)
    assert condition(plan, "Ready")["reason"] == "ScaledToZero"
    assert condition(plan, "Stalled")["status"] == "False"
    assert plan.again is None


def test_a_served_name_belongs_to_the_older_model() -> None:
    desired, observed = served()
    names = {"smollm2": "older"}
    plan = reconcile(desired, replace(observed, owners=names), config(), NOW)
    ready = condition(plan, "Ready")
    assert ready["reason"] == "NameTaken"
    assert f"{NAMESPACE}/older" in ready["message"]


def test_a_loading_model_is_looked_at_often_and_says_how_far_it_is() -> None:
    desired, observed = settle(model())
    loading = replace(
        observed,
        pods=[pod(revision=target(observed))],
        progress={"smollm2-0": Progress("loading", percent=43.0, eta_seconds=20.0)},
    )
    plan = reconcile(desired, loading, config(), NOW)
    assert condition(plan, "Ready")["message"] == "loading 43%, 20s to go"
    assert plan.status is not None
    assert plan.status["load"] == {"percent": 43.0, "etaSeconds": 20.0}
    assert plan.again == 2.0


def test_a_model_that_is_late_is_stalled() -> None:
    desired, observed = settle(model(rollout={"progressDeadline": "10m"}))
    early = reconcile(desired, observed, config(), NOW + 599)
    late = reconcile(desired, observed, config(), NOW + 601)
    assert early.status is None
    stalled = condition(late, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "ProgressDeadlineExceeded")
    assert stalled["message"].startswith("not there after 10m: ")
    assert condition(late, "Progressing")["status"] == "False"


def test_a_condition_keeps_its_time_until_it_flips() -> None:
    desired, observed = settle(model())
    hanging = replace(observed, pods=[pod(revision=target(observed))])
    plan = reconcile(desired, hanging, config(), NOW + 60)
    assert condition(plan, "Ready")["lastTransitionTime"] == rfc3339(NOW)
    ready = replace(observed, pods=[pod(revision=target(observed), ready=True)])
    plan = reconcile(desired, ready, config(), NOW + 60)
    assert condition(plan, "Ready")["lastTransitionTime"] == rfc3339(NOW + 60)


def test_an_event_is_told_once_for_each_reason() -> None:
    gone = model(profile="h100")
    first = reconcile(gone, ObservedModel(), config(), NOW)
    assert first.note is not None
    assert (first.note.type, first.note.reason) == ("Warning", "ProfileNotFound")
    told = {**gone, "status": first.status}
    assert reconcile(told, ObservedModel(), config(), NOW + 5).note is None


def test_objects_are_stamped_with_what_was_wanted() -> None:
    plan = reconcile(model(), ObservedModel(), config(), NOW)
    for each in plan.apply:
        bare = json.loads(json.dumps(each))
        del bare["metadata"]["annotations"][APPLIED]
        if not bare["metadata"]["annotations"]:
            del bare["metadata"]["annotations"]
        assert stamped(bare) == each
