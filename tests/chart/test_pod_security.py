"""Every pod of the chart under Pod Security "restricted", and a little stricter."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

Render = Callable[..., list[dict[str, Any]]]

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


@pytest.mark.parametrize("case", ["minimal", "local", "teams", "openshift", "mirror"])
def test_every_pod_meets_the_restricted_standard(case: str, render: Render) -> None:
    broken = {name: list(violations(pod)) for name, pod in pods(render(case))}
    assert broken == dict.fromkeys(broken, [])


def test_every_container_has_a_read_only_root_and_says_what_it_needs(render: Render) -> None:
    for name, pod in pods(render("minimal")):
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name


def test_only_who_talks_to_the_api_server_has_a_token(render: Render) -> None:
    holders = {
        name: pod["serviceAccountName"]
        for name, pod in pods(render("minimal"))
        if pod["automountServiceAccountToken"]
    }
    assert holders == {
        "Deployment/skirret-operator": "skirret-operator",
        "Deployment/skirret-gateway": "skirret-gateway",
        "Job/skirret-crds": "skirret-crds",
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hostNetwork", True),
        ("hostPID", True),
        ("volumes", [{"name": "host", "hostPath": {"path": "/"}}]),
        ("securityContext", {"runAsNonRoot": True}),
        ("securityContext", {"seccompProfile": {"type": "RuntimeDefault"}}),
        ("containers", [{"name": "a"}]),
    ],
)
def test_the_evaluator_sees_what_the_standard_forbids(field: str, value: object) -> None:
    assert list(violations(_GOOD)) == []
    assert list(violations({**_GOOD, field: value}))


def violations(pod: dict[str, Any]) -> Iterator[str]:
    """What Pod Security "restricted" would refuse."""
    yield from (x for x in ("hostNetwork", "hostPID", "hostIPC") if pod.get(x))
    for volume in pod.get("volumes", []):
        yield from (f"volume {kind}" for kind in set(volume) - {"name"} - VOLUMES)
    outer = pod.get("securityContext", {})
    if outer.get("runAsUser") == 0:
        yield "runAsUser 0"
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own = container.get("securityContext", {})
        both = {**outer, **own}
        if both.get("runAsNonRoot") is not True:
            yield "runAsNonRoot"
        if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if own.get("capabilities", {}) not in (
            {"drop": ["ALL"]},
            {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        ):
            yield "capabilities"
        if own.get("privileged") or own.get("runAsUser") == 0:
            yield "privileged"
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield "hostPort"


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for found in objects:
        name = f"{found['kind']}/{found['metadata']['name']}"
        if found["kind"] == "Pod":
            yield name, found["spec"]
        elif "template" in found.get("spec", {}):
            yield name, found["spec"]["template"]["spec"]


_GOOD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "a",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}
