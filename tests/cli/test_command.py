"""`kubectl skirret`: what it asks of the cluster and what it says to the user."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from skirret_cli.cluster import ClusterError, Kubectl
from skirret_cli.command import carry_out, main

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class OneObject:
    """A Cluster that holds one object and remembers its patches."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held
        self.patches: list[tuple[str, Mapping[str, Any]]] = []
        self.asked: list[str] = []

    def get(self, target: str) -> dict[str, Any]:
        self.asked.append(target)
        return self.held

    def patch(self, target: str, patch: Mapping[str, Any]) -> None:
        self.patches.append((target, patch))


def model(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "InferenceModel",
        "metadata": {"name": "chat", "namespace": "team", "resourceVersion": "7", "generation": 2},
        "spec": {},
        **fields,
    }


def ready(status: str, generation: int = 2, **fields: str) -> dict[str, Any]:
    return {
        "type": "Ready",
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": "2026-03-01T11:57:00Z",
        **fields,
    }


def test_restart_stamps_the_time_into_the_spec() -> None:
    cluster = OneObject(model())
    assert carry_out("restart", "chat", cluster, lambda: NOW) == 0
    assert cluster.patches == [
        ("inferencemodels.skirret.dev/chat", {"spec": {"restartedAt": "2026-03-01T12:00:00Z"}})
    ]


@pytest.mark.parametrize(("spec", "expected"), [({}, 1), ({"templateRevision": 4}, 5)])
def test_upgrade_raises_the_template_revision_of_the_model_it_read(
    spec: dict[str, Any], expected: int
) -> None:
    cluster = OneObject(model(spec=spec))
    carry_out("upgrade", "chat", cluster, lambda: NOW)
    patch = {"metadata": {"resourceVersion": "7"}, "spec": {"templateRevision": expected}}
    assert cluster.patches == [("inferencemodels.skirret.dev/chat", patch)]


def test_why_prints_each_condition_with_its_age(capsys: pytest.CaptureFixture[str]) -> None:
    condition = ready("False", reason="ErrImagePull", message="no such image: x:1")
    carry_out("why", "chat", OneObject(model(status={"conditions": [condition]})), lambda: NOW)
    printed = capsys.readouterr().out
    assert "InferenceModel team/chat" in printed
    assert "Ready      False   ErrImagePull  3m   no such image: x:1" in printed


def test_why_says_when_the_status_is_older_than_the_spec(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = OneObject(model(status={"conditions": [ready("True", generation=1)]}))
    carry_out("why", "chat", cluster, lambda: NOW)
    assert "the operator has still to see it" in capsys.readouterr().out


def test_why_of_an_object_without_status_points_at_the_operator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    carry_out("why", "chat", OneObject(model()), lambda: NOW)
    assert "does an operator run" in capsys.readouterr().out


def test_why_takes_a_kind_before_the_name() -> None:
    cluster = OneObject(model(kind="BatchJob"))
    carry_out("why", "batchjob/nightly", cluster, lambda: NOW)
    assert cluster.asked == ["batchjob.skirret.dev/nightly"]


def test_a_refusal_goes_to_stderr_and_the_status_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Error from server (NotFound): chat\n")

    assert carry_out("why", "chat", Kubectl([], refuse), lambda: NOW) == 1
    assert capsys.readouterr().err == "skirret: Error from server (NotFound): chat\n"


def test_kubectl_gets_the_users_flags_first() -> None:
    calls: list[Sequence[str]] = []

    def remember(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps(model()), "")

    Kubectl(["--namespace=team"], remember).get("inferencemodels.skirret.dev/chat")
    assert calls == [
        [
            "kubectl",
            "--namespace=team",
            "get",
            "inferencemodels.skirret.dev/chat",
            "--output=json",
        ]
    ]


def test_a_missing_kubectl_is_said_plainly() -> None:
    def absent(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise FileNotFoundError("kubectl")

    with pytest.raises(ClusterError, match="kubectl is not on the PATH"):
        Kubectl([], absent).get("inferencemodels.skirret.dev/chat")


def test_an_unknown_command_is_refused_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["reboot", "chat"])
    assert "invalid choice: 'reboot'" in capsys.readouterr().err
