"""The custom resource definitions: what the API server demands, and what a reader does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from skirret_api import crd
from skirret_api.launch import ServerSettings
from skirret_api.model import POD_FIELDS
from skirret_api.parts import Object

FOLDER = Path(__file__).parents[2] / "crds"
DEFINITIONS = {each["spec"]["names"]["kind"]: each for each in crd.definitions()}
FORBIDDEN = ("$ref", "anyOf", "allOf", "oneOf", "const", "title", "$defs", "prefixItems")

both = pytest.mark.parametrize("kind", sorted(DEFINITIONS))


def schema(kind: str) -> Object:
    (version,) = DEFINITIONS[kind]["spec"]["versions"]
    found: Object = version["schema"]["openAPIV3Schema"]
    return found


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every schema inside a schema, with its path."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from nodes(node["additionalProperties"], f"{path}.*")


@both
def test_the_files_are_fresh(kind: str) -> None:
    assert crd.main(["--check", f"--folder={FOLDER}"]) == 0
    name = DEFINITIONS[kind]["metadata"]["name"]
    assert yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) == DEFINITIONS[kind]


def test_a_stale_file_is_found_and_made_anew(tmp_path: Path) -> None:
    assert crd.main(["--check", f"--folder={tmp_path}"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert crd.main([f"--folder={tmp_path}"]) == 0
    assert crd.main(["--check", f"--folder={tmp_path}"]) == 0


@both
def test_the_schema_is_structural(kind: str) -> None:
    for path, node in nodes(schema(kind)):
        assert not set(FORBIDDEN) & set(node), path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not ("properties" in node and "additionalProperties" in node), path


@both
def test_every_field_is_described(kind: str) -> None:
    bare = [
        f"{path}.{name}"
        for path, node in nodes(schema(kind))
        for name, child in node.get("properties", {}).items()
        if not child.get("description") and f"{path}.{name}" != ".metadata"
    ]
    assert bare == []


@both
def test_every_rule_tells_the_user_what_to_do(kind: str) -> None:
    for path, node in nodes(schema(kind)):
        for rule in node.get("x-kubernetes-validations", []):
            assert rule["message"], path
            field = rule.get("fieldPath", "").removeprefix(".")
            assert not field or field in node["properties"], path


@both
def test_what_a_rule_reads_is_bounded(kind: str) -> None:
    """The API server refuses rules whose cost it can't bound."""
    for path, node in nodes(schema(kind)):
        if node.get("type") == "string" and node.get("x-kubernetes-validations"):
            assert "maxLength" in node, path


@both
def test_names_collide_with_nobody(kind: str) -> None:
    names = DEFINITIONS[kind]["spec"]["names"]
    assert names["shortNames"] == [{"InferenceModel": "skm", "BatchJob": "skb"}[kind]]
    assert names["categories"] == ["skirret"]


def columns(kind: str, priority: int = 0) -> list[str]:
    (version,) = DEFINITIONS[kind]["spec"]["versions"]
    found = version["additionalPrinterColumns"]
    return [each["name"].upper() for each in found if each.get("priority", 0) == priority]


def test_kubectl_shows_what_matters() -> None:
    assert columns("InferenceModel") == ["READY", "REPLICAS", "REASON", "MESSAGE", "AGE"]
    assert columns("InferenceModel", priority=1) == ["URL", "REVISION"]
    assert columns("BatchJob") == ["MODEL", "STATUS", "DONE", "FAILED", "TOK/S", "ETA", "AGE"]


def test_unknown_fields_stay_only_where_a_pod_takes_them() -> None:
    open_fields = {
        path
        for path, node in nodes(schema("InferenceModel"))
        if node.get("x-kubernetes-preserve-unknown-fields")
    }
    assert open_fields == {
        ".spec.pod.affinity",
        ".spec.pod.env[].valueFrom",
        ".spec.pod.topologySpreadConstraints[]",
        ".spec.pod.volumes[]",
    }
    assert not [
        path
        for path, node in nodes(schema("BatchJob"))
        if node.get("x-kubernetes-preserve-unknown-fields")
    ]


def test_fields_that_shape_the_pod_have_no_default() -> None:
    """A default added by a later release would look like an edit, and restart every model."""
    spec = schema("InferenceModel")["properties"]["spec"]["properties"]
    defaults = [
        path
        for name in POD_FIELDS
        for path, node in nodes(spec[name], f".{name}")
        if "default" in node
    ]
    assert defaults == []


def test_every_launch_setting_can_be_set() -> None:
    server = schema("InferenceModel")["properties"]["spec"]["properties"]["server"]
    assert len(server["properties"]) == len(ServerSettings.model_fields)
    assert server["properties"]["maxRunningRequests"]["description"].endswith("(64 by default).")


def test_the_scale_subresource_has_what_an_autoscaler_reads() -> None:
    (version,) = DEFINITIONS["InferenceModel"]["spec"]["versions"]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas.current",
        "labelSelectorPath": ".status.selector",
    }
    assert schema("InferenceModel")["properties"]["spec"]["properties"]["replicas"]["default"] == 1
