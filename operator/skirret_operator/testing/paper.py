"""A cluster on paper: one model, its children, and what the controllers of Kubernetes do with them.

Time moves in ticks of a second. The Deployment's rules are those of kube-controller-manager for
Recreate and RollingUpdate; a device that a pod holds is free only when the pod is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from skirret_api import meta
from skirret_api.config import OperatorConfig
from skirret_api.parts import Object
from skirret_operator.reconcile.model import reconcile
from skirret_operator.reconcile.observed import ObservedModel
from skirret_operator.reconcile.plan import Plan
from skirret_operator.reconcile.rollout import is_ready, revision_of
from skirret_operator.reconcile.times import rfc3339
from skirret_operator.testing.objects import NOW, container, ended, pod

Fate = Literal["ready", "never ready", "crashes", "out of memory", "no image"]
_LOADING_TICKS = 3
_ENDING_TICKS = 2


@dataclass(slots=True)
class Paper:
    model: Object
    config: OperatorConfig
    devices: int  # each pod of the model needs one
    now: float = NOW
    fates: dict[str, Fate] = field(default_factory=dict)  # by image; others become ready
    has_room_for_preflight: bool = True
    claim: Object | None = None
    deployment: Object | None = None
    service: Object | None = None
    budget: Object | None = None
    revisions: dict[str, Object] = field(default_factory=dict)
    jobs: dict[str, Object] = field(default_factory=dict)
    job_pods: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    ages: dict[str, int] = field(default_factory=dict)  # ticks since placed, or since going
    made: int = 0

    @property
    def observed(self) -> ObservedModel:
        return ObservedModel(
            deployment=self.deployment,
            service=self.service,
            budget=self.budget,
            revisions=list(self.revisions.values()),
            preflights=list(self.jobs.values()),
            preflight_pods=list(self.job_pods.values()),
            cache_claim=self.claim,
            pods=list(self.pods.values()),
        )

    @property
    def answering(self) -> list[str]:
        """Images of the pods that requests can go to."""
        return [
            _image(each)
            for each in self.pods.values()
            if is_ready(each) and "deletionTimestamp" not in each["metadata"]
        ]

    def reconcile(self, steps: int | None = None) -> Plan:
        """One look of the operator, which is killed after `steps` writes."""
        plan = reconcile(self.model, self.observed, self.config, self.now)
        writes: list[Callable[[], None]] = [
            *(lambda each=each: self._apply(each) for each in plan.apply),
            *(lambda each=each: self._delete(each) for each in plan.delete),
        ]
        for write in writes[:steps]:
            write()
        if plan.status is not None and steps is None:
            self.model = {**self.model, "status": plan.status}
        return plan

    def tick(self) -> None:
        self.now += 1
        if self.deployment is not None:
            self._deploy(self.deployment)
        self._place()
        for name in list(self.pods):
            self._live(name)
        for job in self.jobs.values():
            self._work(job)

    def run(self, ticks: int, look: Callable[[], None] = lambda: None) -> None:
        for _ in range(ticks):
            self.reconcile()
            self.tick()
            look()

    def edit(self, **spec: object) -> None:
        metadata = self.model["metadata"]
        self.model = {
            **self.model,
            "metadata": {**metadata, "generation": metadata["generation"] + 1},
            "spec": {**self.model["spec"], **spec},
        }

    # ---- the API server

    def _apply(self, desired: Object) -> None:
        desired = json.loads(json.dumps(desired))
        name = desired["metadata"]["name"]
        desired["metadata"].setdefault("creationTimestamp", rfc3339(self.now))
        match desired["kind"]:
            case "Deployment":
                self.deployment = desired
            case "Service":
                self.service = desired
            case "PodDisruptionBudget":
                self.budget = desired
            case "ControllerRevision":
                before = self.revisions.get(name)
                if before is not None:
                    assert before["data"] == desired["data"], "a revision's data can't change"
                    desired["metadata"]["creationTimestamp"] = before["metadata"][
                        "creationTimestamp"
                    ]
                self.revisions[name] = desired
            case "Job":
                self.jobs[name] = desired
            case kind:
                raise AssertionError(f"nobody applies a {kind}")

    def _delete(self, live: Object) -> None:
        name = live["metadata"]["name"]
        if live["kind"] == "PodDisruptionBudget":
            self.budget = None
        elif live["kind"] == "Job":
            del self.jobs[name]
            self.job_pods.pop(name, None)
        else:
            del self.revisions[name]

    # ---- the Deployment controller

    def _deploy(self, live: Object) -> None:
        spec = live["spec"]
        replicas, strategy = spec["replicas"], spec["strategy"]
        name = spec["template"]["metadata"]["labels"][meta.REVISION_LABEL]
        staying = [x for x in self.pods.values() if "deletionTimestamp" not in x["metadata"]]
        new = [x for x in staying if revision_of(x) == name]
        old = [x for x in staying if revision_of(x) != name]
        for each in new[replicas:]:
            self._end(each)
        if strategy["type"] == "Recreate":
            for each in old:
                self._end(each)
            if any(revision_of(x) != name for x in self.pods.values()):
                return
            for _ in range(replicas - len(new)):
                self._make(spec["template"])
            return
        surge = strategy["rollingUpdate"]["maxSurge"]
        least = replicas - strategy["rollingUpdate"]["maxUnavailable"]
        for _ in range(min(replicas - len(new), replicas + surge - len(staying))):
            self._make(spec["template"])
        waiting = len([x for x in new if not is_ready(x)])
        to_end = len(staying) - least - waiting
        for each in [x for x in old if not is_ready(x)][: max(0, to_end)]:
            self._end(each)
            to_end -= 1
        spare = len([x for x in staying if is_ready(x)]) - least
        for each in [x for x in old if is_ready(x)][: max(0, min(to_end, spare))]:
            self._end(each)

    def _make(self, template: Object) -> None:
        self.made += 1
        name = f"smollm2-{self.made}"
        made = pod(name, revision=template["metadata"]["labels"][meta.REVISION_LABEL])
        made["spec"] = {**template["spec"]}
        made["status"] = {"phase": "Pending", "conditions": []}
        self.pods[name] = made

    def _end(self, live: Object) -> None:
        if "deletionTimestamp" not in live["metadata"]:
            live["metadata"]["deletionTimestamp"] = rfc3339(self.now)
            self.ages[live["metadata"]["name"]] = 0

    # ---- scheduler and kubelet

    def _place(self) -> None:
        free = self.devices - len([x for x in self.pods.values() if "nodeName" in x["spec"]])
        for each in self.pods.values():
            if "nodeName" in each["spec"]:
                continue
            if free > 0:
                free -= 1
                each["spec"]["nodeName"] = "node1"
                self.ages[each["metadata"]["name"]] = 0
                each["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
            elif not each["status"]["conditions"]:
                each["status"]["conditions"] = [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                        "lastTransitionTime": rfc3339(self.now),
                    }
                ]

    def _live(self, name: str) -> None:
        live = self.pods[name]
        going = "deletionTimestamp" in live["metadata"]
        if going and ("nodeName" not in live["spec"] or self.ages[name] >= _ENDING_TICKS):
            del self.pods[name]
            return
        if "nodeName" not in live["spec"]:
            return
        self.ages[name] += 1
        age, status = self.ages[name], live["status"]
        if going:
            return
        placed = {"type": "PodScheduled", "status": "True"}
        match self.fates.get(_image(live), "ready"):
            case "ready":
                answers = "True" if age >= _LOADING_TICKS else "False"
                status["conditions"] = [placed, {"type": "Ready", "status": answers}]
                status["containerStatuses"] = [container(running={})]
            case "never ready":
                status["containerStatuses"] = [container(running={})]
            case "crashes":
                died = ended(1, "ValueError: no such layer")
                status["containerStatuses"] = [container(restarts=age - 1, terminated=died)]
            case "out of memory":
                died = ended(137, reason="OOMKilled")
                status["containerStatuses"] = [container(terminated=died)]
            case "no image":
                refused = {"reason": "ErrImagePull", "message": "manifest unknown"}
                status["containerStatuses"] = [container(waiting=refused)]

    def _work(self, job: Object) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        if name not in self.job_pods:
            made = pod(f"{name}-x", revision=template["metadata"]["labels"][meta.REVISION_LABEL])
            made["spec"] = {**template["spec"]}
            made["status"] = {"phase": "Pending", "conditions": []}
            self.job_pods[name] = made
            return
        live = self.job_pods[name]
        if not self.has_room_for_preflight:
            return
        live["spec"]["nodeName"] = "node1"
        if self.fates.get(_image(live)) == "no image":
            refused = {"reason": "ErrImagePull", "message": "manifest unknown"}
            live["status"]["containerStatuses"] = [container("preflight", waiting=refused)]
        else:
            job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}


def _image(live: Object) -> str:
    image: str = live["spec"]["containers"][0]["image"]
    return image
