"""Events become keys; and a watch that misses what a resync sees is found out."""

from __future__ import annotations

import pytest

from skirret_api.parts import Object
from skirret_operator.informer import DeadWatch, Informer
from skirret_operator.kinds import BATCH, JOB, MODEL, POD, SERVICE
from skirret_operator.observer import Key, Snapshot
from skirret_operator.testing.objects import NAMESPACE, model, pod


class Ears:
    """An informer, and what it has woken."""

    def __init__(self) -> None:
        self.woken: list[Key] = []
        self.informer = Informer(self.woken.append)


@pytest.fixture
def ears() -> Ears:
    return Ears()


def at(body: Object, version: str) -> Object:
    return {**body, "metadata": {**body["metadata"], "resourceVersion": version}}


def snapshot(*bodies: Object) -> Snapshot:
    return Snapshot({(each["kind"], NAMESPACE, each["metadata"]["name"]): each for each in bodies})


def test_an_object_wakes_itself_and_a_child_its_owner(ears: Ears) -> None:
    ears.informer.handle(MODEL, "ADDED", model())
    ears.informer.handle(POD, "MODIFIED", at(pod(), "5"))
    assert ears.woken == [("InferenceModel", NAMESPACE, "smollm2")] * 2


def test_a_pod_of_a_batch_wakes_the_batch(ears: Ears) -> None:
    worker = at(pod("w"), "5")
    worker["metadata"]["labels"] = {"skirret.dev/batch": "summaries"}
    ears.informer.handle(POD, "ADDED", worker)
    assert ears.woken == [(BATCH.name, NAMESPACE, "summaries")]


def test_a_child_without_an_owner_wakes_nobody(ears: Ears) -> None:
    stray = at(pod(), "5")
    stray["metadata"]["labels"] = {}
    ears.informer.handle(JOB, "ADDED", stray)
    assert ears.woken == []


def test_those_who_share_a_name_are_woken_when_it_is_let_go(ears: Ears) -> None:
    ears.informer.handle(MODEL, None, model("a", servedNames=["chat"]))
    ears.informer.handle(MODEL, None, model("b", servedNames=["chat"]))
    ears.informer.handle(MODEL, None, model("c", servedNames=["other"]))
    ears.woken.clear()
    ears.informer.handle(MODEL, "DELETED", model("a", servedNames=["chat"]))
    assert set(ears.woken) == {(MODEL.name, NAMESPACE, "a"), (MODEL.name, NAMESPACE, "b")}


def test_an_edit_of_the_status_alone_wakes_nobody_else(ears: Ears) -> None:
    ears.informer.handle(MODEL, None, model("a", servedNames=["chat"]))
    ears.informer.handle(MODEL, None, model("b", servedNames=["chat"]))
    ears.woken.clear()
    ears.informer.handle(MODEL, "MODIFIED", at(model("a", servedNames=["chat"]), "9"))
    assert ears.woken == [(MODEL.name, NAMESPACE, "a")]


def test_a_name_is_contested_while_two_claim_it(ears: Ears) -> None:
    a, b = model("a", servedNames=["chat", "x"]), model("b", servedNames=["chat"])
    ears.informer.handle(MODEL, None, a)
    assert not ears.informer.is_contested(a)
    assert ears.informer.is_contested(b)
    ears.informer.handle(MODEL, None, b)
    assert ears.informer.is_contested(a)
    ears.informer.handle(MODEL, "MODIFIED", model("a", servedNames=["x"]))
    assert not ears.informer.is_contested(b)
    ears.informer.handle(MODEL, "DELETED", b)
    assert not ears.informer.is_contested(b)


def test_two_namespaces_may_claim_one_name(ears: Ears) -> None:
    here, there = model("a", servedNames=["chat"]), model("b", servedNames=["chat"])
    there["metadata"]["namespace"] = "team-b"
    for each in (here, there):
        ears.informer.handle(MODEL, None, each)
    assert not ears.informer.is_contested(here)
    assert not ears.informer.is_contested(there)
    assert ears.woken == [(MODEL.name, NAMESPACE, "a"), (MODEL.name, "team-b", "b")]


def test_what_was_told_is_no_surprise(ears: Ears) -> None:
    ears.informer.handle(MODEL, None, at(model(), "7"))
    for _ in range(3):
        ears.informer.compare(snapshot(at(model(), "7")), ears.informer.told())


def test_what_no_watch_told_by_the_next_resync_is_a_dead_watch(ears: Ears) -> None:
    seen = snapshot(at(model(), "7"))
    ears.informer.compare(seen, ears.informer.told())
    with pytest.raises(DeadWatch, match="InferenceModel/team-a/smollm2 at 7"):
        ears.informer.compare(seen, ears.informer.told())


def test_a_watch_that_is_only_slow_is_not_dead(ears: Ears) -> None:
    ears.informer.compare(snapshot(at(model(), "7")), ears.informer.told())
    ears.informer.handle(MODEL, "ADDED", at(model(), "7"))
    ears.informer.compare(snapshot(at(model(), "7")), ears.informer.told())
    ears.informer.compare(snapshot(at(model(), "8")), ears.informer.told())
    ears.informer.handle(MODEL, "MODIFIED", at(model(), "8"))
    ears.informer.compare(snapshot(at(model(), "8")), ears.informer.told())


def test_what_came_while_the_snapshot_was_taken_is_not_forgotten(ears: Ears) -> None:
    told = ears.informer.told()
    ears.informer.handle(SERVICE, "ADDED", {"kind": "Service", **at(pod("s"), "7")})
    ears.informer.compare(snapshot(), told)
    later = {**at(pod("s"), "7"), "kind": "Service"}
    ears.informer.compare(snapshot(later), ears.informer.told())
    ears.informer.compare(snapshot(later), ears.informer.told())


def test_a_lost_deletion_lets_go_of_names(ears: Ears) -> None:
    ears.informer.handle(MODEL, None, model("a", servedNames=["chat"]))
    ears.informer.handle(MODEL, None, model("b", servedNames=["chat"]))
    ears.woken.clear()
    ears.informer.compare(snapshot(model("b", servedNames=["chat"])), ears.informer.told())
    assert ears.woken == [(MODEL.name, NAMESPACE, "b")]


def test_objects_that_nobody_watches_are_not_missed(ears: Ears) -> None:
    revision = {**at(pod("r"), "7"), "kind": "ControllerRevision"}
    for _ in range(3):
        ears.informer.compare(snapshot(revision), ears.informer.told())
