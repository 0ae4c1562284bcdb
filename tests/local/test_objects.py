"""The objects the local cluster brings along."""

from __future__ import annotations

from pathlib import Path

from skirret_local import objects


def test_a_namespace_enforces_the_restricted_standard() -> None:
    labels = objects.namespace("team")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_volume_and_its_claim_name_each_other() -> None:
    volume, claim = objects.volume("models", "team", Path("/models"))
    assert volume["metadata"]["name"] == claim["spec"]["volumeName"] == "models-team"
    assert volume["spec"]["claimRef"]["namespace"] == claim["metadata"]["namespace"] == "team"


def test_a_volume_is_read_only_and_no_host_path() -> None:
    volume, claim = objects.volume("models", "team", Path("/models"))
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadOnlyMany"]
    assert volume["spec"]["local"] == {"path": "/models"}


def test_a_volume_is_on_every_node_there_may_be() -> None:
    volume, _ = objects.volume("models", "team", Path("/models"))
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == [f"node{n}" for n in range(1, 10)]


def test_every_service_has_endpoints_of_its_own() -> None:
    found = {(x["kind"], x["metadata"].get("namespace")) for x in objects.system()}
    for namespace in ("kube-system", "storage"):
        assert {("Service", namespace), ("EndpointSlice", namespace)} <= found
