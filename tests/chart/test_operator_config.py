"""The operator's configuration and the tenants' files, read by the code that will read them."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from skirret_api.config import OperatorConfig
from skirret_api.internal import GATEWAY_PORT, TENANTS_DIR
from skirret_api.tenants import S3Store, read_tenants

Render = Callable[..., list[dict[str, Any]]]


def config(objects: list[dict[str, Any]]) -> OperatorConfig:
    found = next(x for x in objects if x["kind"] == "ConfigMap")
    return OperatorConfig.model_validate(yaml.safe_load(found["data"]["config.yaml"]))


def secret(objects: list[dict[str, Any]], namespace: str, name: str) -> dict[str, bytes]:
    for found in objects:
        place = (found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
        if place == ("Secret", namespace, name):
            return {key: base64.b64decode(x) for key, x in found["data"].items()}
    raise LookupError(f"no Secret {namespace}/{name}")


@pytest.mark.parametrize("case", ["minimal", "local", "teams", "openshift", "mirror"])
def test_the_rendered_configuration_is_one_the_operator_takes(case: str, render: Render) -> None:
    read = config(render(case))
    assert read.release_namespace == "skirret"
    assert read.gateway_url == f"http://skirret-gateway.skirret.svc:{GATEWAY_PORT}"


def test_each_profile_gets_the_server_image_of_its_device(render: Render) -> None:
    images = {name: x.image for name, x in config(render("mirror")).profiles.items()}
    mirror = "mirror.example.com/skirret"
    assert images["cpu"] == f"{mirror}/skirret-server:0.1.0"
    assert images["h100"] == f"{mirror}/skirret-server-cuda:1.2.3-cu130"
    assert images["mi300"] == f"{mirror}/skirret-server-rocm:0.1.0"


def test_an_image_that_a_profile_names_wins(render: Render) -> None:
    read = config(render("minimal", "profiles.l4.image=mine/server:1"))
    assert read.profiles["l4"].image == "mine/server:1"


def test_values_of_openshift_leave_the_user_to_the_cluster(render: Render) -> None:
    assert config(render("openshift")).run_as_user is None


def test_chart_and_operator_agree_on_the_user_of_pods(render: Render) -> None:
    assert (
        config(render("minimal")).run_as_user == OperatorConfig.model_fields["run_as_user"].default
    )


def test_large_numbers_stay_whole(render: Render) -> None:
    assert config(render("openshift")).profiles["big"].server.max_total_tokens == 2_000_000


def test_a_removed_profile_is_not_there(render: Render) -> None:
    assert set(config(render("openshift")).profiles) == {"cpu", "big"}


def test_gateway_and_operator_can_read_every_tenant(render: Render, tmp_path: Path) -> None:
    for name, content in secret(render("teams"), "skirret", "skirret-tenants").items():
        (tmp_path / name).write_bytes(content)
    tenants = read_tenants(tmp_path)
    assert tenants["team-a"].store == S3Store(
        endpoint="https://minio.example.com:9000",
        bucket="shared",
        prefix="team-a",
        accessKey="shared",
        secretKey="shared-secret",
    )
    assert tenants["team-b"].store == S3Store(
        endpoint="https://minio.example.com:9000",
        bucket="team-b",
        accessKey="b",
        secretKey="b-secret",
        caBundle="-----BEGIN CERTIFICATE-----",
    )


def test_a_tenant_can_take_a_setting_back(render: Render) -> None:
    own = secret(
        render(
            "minimal",
            "store.prefix=a",
            "namespaces[0].store.prefix=",
            "namespaces[0].store.pathStyle=false",
        ),
        "skirret",
        "skirret-tenant",
    )
    store = S3Store.model_validate_json(own["store.json"])
    assert (store.prefix, store.pathStyle) == ("", False)


def test_a_tenants_own_secret_says_the_same_as_the_one_with_all(render: Render) -> None:
    objects = render("teams")
    own = secret(objects, "team-a", "skirret-tenant")
    everyone = secret(objects, "skirret", "skirret-tenants")
    assert own == {name: everyone[f"team-a.{name}"] for name in ("store.json", "token")}


def test_a_token_nobody_gave_is_made_once_for_both_secrets(render: Render) -> None:
    objects = render("minimal", "namespaces[0].token=")
    token = secret(objects, "skirret", "skirret-tenant")["token"]
    assert len(token) == 48
    assert secret(objects, "skirret", "skirret-tenants")["skirret.token"] == token


def test_without_namespaces_the_releases_own_is_the_tenant(render: Render) -> None:
    objects = render("minimal", "namespaces=null")
    assert config(objects).namespaces == ["skirret"]
    assert secret(objects, "skirret", "skirret-tenant")


def test_a_referenced_secret_is_mounted_and_none_is_made(render: Render) -> None:
    objects = render("teams")
    with pytest.raises(LookupError):
        secret(objects, "team-c", "skirret-tenant")
    for name in ("skirret-gateway", "skirret-operator"):
        deployment = next(
            x for x in objects if x["kind"] == "Deployment" and x["metadata"]["name"] == name
        )
        pod = deployment["spec"]["template"]["spec"]
        volume = next(x for x in pod["volumes"] if x["name"] == "tenants")
        assert volume["projected"]["sources"][1]["secret"] == {
            "name": "skirret-team-c",
            "items": [
                {"key": "store.json", "path": "team-c.store.json"},
                {"key": "token", "path": "team-c.token"},
            ],
        }
        mounts = pod["containers"][0]["volumeMounts"]
        assert TENANTS_DIR in [x["mountPath"] for x in mounts]
