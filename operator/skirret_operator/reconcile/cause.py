"""Why pods do not answer: the deepest cause that status, Events and the server itself tell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from skirret_api.internal import FATAL
from skirret_api.parts import Object
from skirret_operator.reconcile.times import in_words


@dataclass(frozen=True, slots=True)
class Progress:
    """What a server says of its own loading (`/status`)."""

    phase: str
    percent: float | None = None
    eta_seconds: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    reason: str
    message: str
    depth: int  # the deeper, the nearer to the root of the matter
    progress: Progress | None = None
    crashes: int = 0  # of the container, as far as it has come back each time

    @property
    def is_final(self) -> bool:
        """Whether starting the same once more promises nothing."""
        return self.depth >= _FATAL or self.reason in _FINAL or self.crashes > 1

    @property
    def is_watched(self) -> bool:
        """Whether an event comes when it changes; the rest must be looked up."""
        return self.depth >= _WATCHED


# Images, secrets and volumes a user gave wrongly, as kubelet calls them.
_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*": (?:ErrImagePull: )?')
_FINAL = frozenset({"ErrImagePull", "OOMKilled"})
_FATAL = 9  # the server itself has said why it gave up
_WATCHED = 4  # from here on, causes are told by the status of pods and Deployments
_STARTING = Cause("Starting", "waiting for the pod to start", depth=0)


def deepest(
    pods: Iterable[Object],
    container: str,
    events: Mapping[str, str],
    progress: Mapping[str, Progress],
    workload: Object | None = None,
) -> Cause:
    """Among pods that should answer and do not. `events` and `progress` are by the pod's name."""
    causes = [_STARTING]
    if workload is not None:
        causes += _of_workload(workload)
    for pod in pods:
        name = pod["metadata"]["name"]
        causes.append(_of_pod(pod, container, events.get(name), progress.get(name)))
    return max(causes, key=lambda cause: cause.depth)


def _of_workload(workload: Object) -> list[Cause]:
    """Pods that could not even be made: quota, Pod Security, a missing service account."""
    failures = [
        condition
        for condition in workload.get("status", {}).get("conditions", [])
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True"
    ]
    return [
        Cause(
            "QuotaExceeded" if "exceeded quota" in failure.get("message", "") else "FailedCreate",
            failure.get("message", ""),
            depth=5,
        )
        for failure in failures
    ]


def _of_pod(pod: Object, container: str, event: str | None, progress: Progress | None) -> Cause:
    status = pod.get("status", {})
    scheduled: Object = next(
        (c for c in status.get("conditions", []) if c["type"] == "PodScheduled"), {}
    )
    if scheduled.get("status") == "False":
        return Cause(
            scheduled.get("reason", "Unschedulable"), scheduled.get("message", ""), depth=_WATCHED
        )
    statuses = status.get("containerStatuses", [])
    seen: Object = next((each for each in statuses if each["name"] == container), {})
    state = seen.get("state", {})
    waiting = state.get("waiting", {})
    if waiting.get("reason") in _IMAGE:
        message = _BACK_OFF.sub("", waiting.get("message", ""))
        return Cause("ErrImagePull", message or waiting["reason"], depth=6)
    ended = state.get("terminated") or seen.get("lastState", {}).get("terminated")
    if ended and ended.get("exitCode", 0) != 0:
        crash = _of_crash(ended, seen, pod, container)
        if progress is None or "running" not in state:
            return crash
        return replace(
            crash, message=f"{crash.message}; now {_in_words(progress)}", progress=progress
        )
    if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return Cause(waiting["reason"], waiting.get("message", ""), depth=6)
    if status.get("reason"):  # of the pod as a whole: Evicted, NodeLost, …
        return Cause(status["reason"], status.get("message", ""), depth=6)
    if event is not None and "running" not in state:
        reason, _, message = event.partition(": ")
        return Cause(reason, message, depth=3)
    if progress is not None:
        return Cause("Loading", _in_words(progress), depth=2, progress=progress)
    if "running" in state:
        return Cause("Loading", "the server has started", depth=1)
    return _STARTING


def _of_crash(ended: Object, seen: Object, pod: Object, container: str) -> Cause:
    restarts = seen.get("restartCount", 0)
    again = f" (restarted {restarts} times)" if restarts > 1 else ""
    if ended.get("reason") == "OOMKilled":
        limit = _memory_limit(pod, container)
        return Cause(
            "OOMKilled",
            f"the container needed more memory than its limit of {limit}{again}",
            depth=8,
        )
    fatal = _last_words(ended.get("message", ""))
    if isinstance(fatal, Cause):
        return fatal
    message = f"exit code {ended['exitCode']}" + (f": {fatal}" if fatal else "") + again
    crashes = restarts if "running" in seen.get("state", {}) else restarts + 1
    return Cause("CrashLoopBackOff" if restarts else "Crashed", message, depth=7, crashes=crashes)


def _last_words(log: str) -> Cause | str:
    """What a process that gave up said it gave up for, or else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith(FATAL):
            try:
                said = json.loads(line.removeprefix(FATAL))
                return Cause(str(said["reason"]), str(said["message"]), depth=_FATAL)
            except (ValueError, KeyError, TypeError):
                return line
    return lines[-1] if lines else ""


def _memory_limit(pod: Object, container: str) -> str:
    for each in pod["spec"].get("containers", []):
        if each["name"] == container:
            limit = each.get("resources", {}).get("limits", {}).get("memory")
            return str(limit) if limit else "the node's memory"
    return "the node's memory"


def _in_words(progress: Progress) -> str:
    words = progress.phase
    if progress.percent is not None:
        words += f" {progress.percent:.0f}%"
    if progress.eta_seconds is not None:
        words += f", {in_words(progress.eta_seconds)} to go"
    return words
