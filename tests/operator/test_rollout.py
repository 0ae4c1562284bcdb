"""Rollouts on a cluster on paper: what answers meanwhile, with room for both and without."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from skirret_api.parts import Object
from skirret_operator.testing.objects import config, model
from skirret_operator.testing.paper import Fate, Paper

OLD, NEW, NEWER = "skirret-server:1", "skirret-server:2", "skirret-server:3"


def serving(devices: int = 1, **spec: Any) -> Paper:
    """A model at rest."""
    paper = Paper(model(**spec), config(), devices)
    paper.run(12)
    assert set(paper.answering) == {OLD}
    assert not paper.reconcile().changes_anything
    return paper


def ask_for(paper: Paper, image: str, fate: Fate = "ready") -> None:
    """Has the next revision rendered with `image`, which turns out like this."""
    paper.config = config(images={"server": image, "batch": "skirret:1"})
    paper.fates[image] = fate
    paper.edit(templateRevision=int(image.rpartition(":")[2]))


def ready(paper: Paper) -> Object:
    conditions = paper.model["status"]["conditions"]
    found: Object = next(each for each in conditions if each["type"] == "Ready")
    return found


def outage(paper: Paper, ticks: int) -> int:
    """Ticks of the next `ticks` in which nothing answered."""
    silent = []
    paper.run(ticks, look=lambda: silent.append(not paper.answering))
    return sum(silent)


def test_with_room_the_new_pod_answers_before_the_old_one_goes() -> None:
    paper = serving(devices=2)
    ask_for(paper, NEW)
    assert outage(paper, 40) == 0
    assert paper.answering == [NEW]
    assert ready(paper)["status"] == "True"


def test_without_room_the_old_pod_makes_way_after_ten_seconds() -> None:
    paper = serving(devices=1)
    ask_for(paper, NEW)
    assert 0 < outage(paper, 40) < 10  # as long as one takes to end and another to load
    assert paper.answering == [NEW]


def test_of_two_replicas_without_room_one_always_answers() -> None:
    paper = serving(devices=2, replicas=2)
    ask_for(paper, NEW)
    assert outage(paper, 60) == 0
    assert paper.answering == [NEW, NEW]


def test_nothing_is_touched_until_image_and_weights_are_there() -> None:
    paper = serving()
    ask_for(paper, NEW)
    paper.has_room_for_preflight = True
    paper.reconcile()
    (job,) = paper.jobs.values()
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == NEW
    assert paper.deployment is not None
    assert paper.deployment["spec"]["template"]["spec"]["containers"][0]["image"] == OLD
    assert ready(paper)["reason"] == "Preparing"


def test_a_preflight_that_finds_no_place_holds_nothing_up() -> None:
    paper = serving()
    paper.has_room_for_preflight = False
    ask_for(paper, NEW)
    paper.run(60)
    assert paper.answering == [NEW]
    assert paper.jobs == {}


def test_a_first_revision_needs_no_preflight() -> None:
    paper = Paper(model(), config(), devices=1)
    paper.run(12)
    assert paper.jobs == {}


def test_an_image_that_is_not_there_never_reaches_the_pods() -> None:
    paper = serving()
    ask_for(paper, NEW, "no image")
    assert outage(paper, 40) == 0
    assert paper.made == 1
    assert ready(paper)["reason"] == "RolloutFailed"
    assert "manifest unknown" in ready(paper)["message"]


@pytest.mark.parametrize("fate", ["crashes", "out of memory"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_revision_that_fails_gives_way_to_the_last_good_one(fate: Fate, devices: int) -> None:
    paper = serving(devices=devices)
    ask_for(paper, NEW, fate)
    silent = outage(paper, 60)
    assert silent == 0 if devices == 2 else silent < 15
    assert paper.answering == [OLD]
    assert paper.deployment is not None
    revisions = paper.model["status"]["revisions"]
    assert revisions["serving"] != revisions["target"]
    assert ready(paper)["status"] == "False"
    message = ready(paper)["message"]
    assert revisions["target"] in message
    assert revisions["serving"] in message


def test_one_that_is_never_ready_gives_way_at_the_deadline() -> None:
    paper = serving(rollout={"progressDeadline": "60s"})
    ask_for(paper, NEW, "never ready")
    paper.run(50)
    assert paper.answering == []
    paper.run(40)
    assert paper.answering == [OLD]
    assert "not there after 1m" in ready(paper)["message"]


def test_without_rollback_a_broken_revision_is_told_and_stays() -> None:
    paper = serving(rollout={"rollback": False})
    ask_for(paper, NEW, "crashes")
    paper.run(60)
    assert paper.answering == []
    assert ready(paper)["reason"] == "CrashLoopBackOff"


def test_the_next_edit_after_a_failure_is_rolled_out() -> None:
    paper = serving(devices=2)
    ask_for(paper, NEW, "crashes")
    paper.run(40)
    ask_for(paper, NEWER)
    assert outage(paper, 40) == 0
    assert paper.answering == [NEWER]


def test_a_failed_revision_that_is_asked_for_again_gets_another_chance() -> None:
    paper = serving(devices=2)
    first = paper.model["spec"]
    ask_for(paper, NEW, "crashes")
    second = paper.model["spec"]
    paper.run(40)
    paper.edit(**first)
    paper.model["spec"].pop("templateRevision")
    paper.run(10)
    paper.fates[NEW] = "ready"
    paper.edit(**second)
    assert outage(paper, 40) == 0
    assert paper.answering == [NEW]


@pytest.mark.parametrize("after", range(0, 20, 2))
def test_an_edit_during_a_rollout_never_ends_what_serves(after: int) -> None:
    paper = serving(devices=2)
    ask_for(paper, NEW)
    assert outage(paper, after) == 0
    ask_for(paper, NEWER)
    assert outage(paper, 50) == 0
    assert paper.answering == [NEWER]


@pytest.mark.parametrize("after", range(0, 20, 2))
def test_a_revert_during_a_rollout_never_ends_what_serves(after: int) -> None:
    paper = serving(devices=2)
    before = deepcopy(paper.model["spec"])
    ask_for(paper, NEW)
    assert outage(paper, after) == 0
    paper.model = {**paper.model, "spec": before}
    assert outage(paper, 50) == 0
    assert paper.answering == [OLD]
    assert ready(paper)["status"] == "True"


@pytest.mark.parametrize("fate", ["ready", "crashes", "no image"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_operator_that_is_killed_after_any_write_gets_to_the_same_end(
    fate: Fate, devices: int, steps: int
) -> None:
    whole, broken = serving(devices), serving(devices)
    for paper in (whole, broken):
        ask_for(paper, NEW, fate)
    whole.run(80)
    for _ in range(80):
        broken.reconcile(steps)
        broken.reconcile(steps)
        broken.tick()
        broken.reconcile()
    assert broken.answering == whole.answering
    assert ready(broken)["reason"] == ready(whole)["reason"]


def test_a_cache_that_one_node_alone_can_mount_leaves_no_room_for_two() -> None:
    paper = serving(devices=2, cache={"claimName": "weights"})
    paper.claim = {"spec": {"accessModes": ["ReadWriteOnce"]}}
    ask_for(paper, NEW)
    assert outage(paper, 40) > 0
    assert paper.made == 2
    assert paper.answering == [NEW]


def test_preflight_fetches_to_a_claim_and_only_looks_without_one() -> None:
    for cache, arguments in (({"claimName": "weights"}, None), ({}, ["--look"])):
        paper = serving(cache=cache)
        ask_for(paper, NEW)
        paper.reconcile()
        (job,) = paper.jobs.values()
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container.get("args") == arguments
        assert container["command"][2:4] == ["skirret_server", "fetch"]


def test_the_service_never_finds_a_preflight() -> None:
    paper = serving(resources={"limits": {"nvidia.com/gpu": "1", "memory": "4Gi"}})
    ask_for(paper, NEW)
    paper.reconcile()
    (job,) = paper.jobs.values()
    assert "skirret.dev/model" not in job["spec"]["template"]["metadata"]["labels"]
    assert "nvidia.com/gpu" not in json.dumps(job)


def test_a_budget_is_there_from_two_replicas_on() -> None:
    paper = serving(devices=2)
    assert paper.budget is None
    paper.edit(replicas=2)
    paper.run(2)
    assert paper.budget is not None
    assert paper.budget["spec"]["maxUnavailable"] == 1
    paper.edit(replicas=1)
    paper.run(2)
    assert paper.budget is None
