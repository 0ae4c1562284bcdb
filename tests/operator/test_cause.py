"""Why a pod does not answer."""

from __future__ import annotations

from skirret_api.parts import Object
from skirret_operator.reconcile.cause import Cause, Progress, deepest
from skirret_operator.testing.objects import container, ended, pod


def why(
    *pods: Object, events: dict[str, str] | None = None, workload: Object | None = None
) -> Cause:
    return deepest(pods, "server", events or {}, {}, workload)


def crashed(message: str, *, restarts: int = 3, reason: str = "Error", code: int = 1) -> Object:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container"}
    last = ended(code, message, reason)
    return pod(containerStatuses=[container(waiting=waiting, restarts=restarts, last=last)])


def test_a_pod_that_fits_nowhere_speaks_in_the_schedulers_words() -> None:
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    unplaced = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": words,
    }
    cause = why(pod(conditions=[unplaced], containerStatuses=[]))
    assert (cause.reason, cause.message) == ("Unschedulable", words)


def test_a_missing_claim_is_the_schedulers_word_too() -> None:
    words = 'persistentvolumeclaim "models" not found'
    unplaced = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": words,
    }
    assert why(pod(conditions=[unplaced])).message == words


def test_an_image_that_is_not_there_keeps_one_reason_while_kubelet_backs_off() -> None:
    first = {"reason": "ErrImagePull", "message": "x:9: not found"}
    then = {
        "reason": "ImagePullBackOff",
        "message": 'Back-off pulling image "x:9": ErrImagePull: x:9: not found',
    }
    causes = [why(pod(containerStatuses=[container(waiting=each)])) for each in (first, then)]
    assert causes[0] == causes[1]
    assert (causes[0].reason, causes[0].message) == ("ErrImagePull", "x:9: not found")


def test_a_crash_tells_its_last_line() -> None:
    log = "Traceback (most recent call last):\n  File …\nValueError: no config.json in /models\n"
    cause = why(crashed(log))
    assert cause.reason == "CrashLoopBackOff"
    assert cause.message == (
        "exit code 1: ValueError: no config.json in /models (restarted 3 times)"
    )


def test_a_server_that_gave_up_says_why_in_its_own_words() -> None:
    log = (
        "some line\n"
        'skirret-fatal: {"reason": "DoesNotFit", "message": "weights 16 GiB + KV 4 GiB > 15 GiB"}\n'
    )
    cause = why(crashed(log))
    assert (cause.reason, cause.message) == ("DoesNotFit", "weights 16 GiB + KV 4 GiB > 15 GiB")


def test_last_words_that_are_cut_off_are_told_as_they_are() -> None:
    cause = why(crashed('skirret-fatal: {"reason": "DoesNot', restarts=0))
    assert cause.reason == "Crashed"
    assert "DoesNot" in cause.message


def test_too_little_memory_names_the_limit() -> None:
    cause = why(crashed("", reason="OOMKilled", code=137, restarts=1))
    assert cause.reason == "OOMKilled"
    assert "limit of 4Gi" in cause.message


def test_a_missing_secret_is_told_by_kubelet() -> None:
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}
    cause = why(pod(containerStatuses=[container(waiting=waiting)]))
    assert (cause.reason, cause.message) == ("CreateContainerConfigError", 'secret "hf" not found')


def test_a_volume_that_does_not_mount_is_told_by_an_event() -> None:
    hanging = pod(
        phase="Pending", containerStatuses=[container(waiting={"reason": "ContainerCreating"})]
    )
    words = (
        'MountVolume.SetUp failed for volume "skirret-tenant": secret "skirret-tenant" not found'
    )
    cause = why(hanging, events={"smollm2-0": f"FailedMount: {words}"})
    assert (cause.reason, cause.message) == ("FailedMount", words)


def test_a_quota_is_told_by_the_deployment() -> None:
    words = 'pods "smollm2-" is forbidden: exceeded quota: gpus, requested: 1, used: 4, limited: 4'
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": words,
    }
    cause = why(workload={"status": {"conditions": [failure]}})
    assert (cause.reason, cause.message) == ("QuotaExceeded", words)


def test_an_evicted_pod_says_so() -> None:
    cause = why(pod(reason="Evicted", message="node was low on memory", containerStatuses=[]))
    assert (cause.reason, cause.message) == ("Evicted", "node was low on memory")


def test_a_crash_lies_deeper_than_a_pod_that_loads() -> None:
    loading, dead = pod("a"), crashed("boom")
    assert why(loading, dead).reason == "CrashLoopBackOff"


def test_a_server_that_loads_again_after_a_crash_tells_both() -> None:
    running = container(running={}, restarts=1, last=ended(1, "boom"))
    again = pod(containerStatuses=[running])
    progress = {"smollm2-0": Progress("loading", percent=10.0)}
    cause = deepest([again], "server", {}, progress)
    assert cause.message == "exit code 1: boom; now loading 10%"
    assert cause.progress == progress["smollm2-0"]


def test_without_pods_it_is_starting() -> None:
    assert why().reason == "Starting"
