"""Who may do what: exactly this, and nothing in the whole cluster but the hook's two CRDs."""

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

Render = Callable[..., list[dict[str, Any]]]

OPERATOR = {
    "skirret.dev/inferencemodels": ["get", "list", "watch"],
    "skirret.dev/inferencemodels/status": ["patch"],
    "skirret.dev/batchjobs": ["get", "list", "watch", "create", "delete"],
    "skirret.dev/batchjobs/status": ["patch"],
    "apps/deployments": ["get", "list", "watch", "create", "patch"],
    "apps/controllerrevisions": ["list", "create", "patch", "delete"],
    "batch/jobs": ["list", "watch", "create", "patch", "delete"],
    "services": ["get", "list", "watch", "create", "patch"],
    "pods": ["list", "watch"],
    "persistentvolumeclaims": ["get"],
    "policy/poddisruptionbudgets": ["get", "list", "create", "patch", "delete"],
    "events": ["list", "create"],
}
GATEWAY = {
    "skirret.dev/inferencemodels": ["list", "watch"],
    "discovery.k8s.io/endpointslices": ["list", "watch"],
}
UNITS = {"discovery.k8s.io/endpointslices": ["list", "watch"]}
LEASE = {"coordination.k8s.io/leases": ["create", "get", "update"]}
HOOK = {"apiextensions.k8s.io/customresourcedefinitions": ["get", "create", "patch"]}


def rights(role: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rule in role["rules"]:
        for group, resource in product(rule["apiGroups"], rule["resources"]):
            found.setdefault(f"{group}/{resource}".removeprefix("/"), []).extend(rule["verbs"])
    return found


def roles(objects: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, list[str]]]:
    return {
        (x["kind"], x["metadata"].get("namespace", ""), x["metadata"]["name"]): rights(x)
        for x in objects
        if x["kind"] in ("Role", "ClusterRole")
    }


def test_each_tenants_namespace_grants_exactly_this_table(render: Render) -> None:
    tenants = {
        ("Role", namespace, name): table
        for namespace in ("team-a", "team-b", "team-c")
        for name, table in (("skirret-operator", OPERATOR), ("skirret-gateway", GATEWAY))
    }
    assert roles(render("teams")) == tenants | {
        ("Role", "skirret", "skirret-operator-lease"): LEASE,
        ("Role", "skirret", "skirret-gateway-units"): UNITS,
        ("ClusterRole", "", "skirret-crds-skirret"): HOOK,
    }


def test_without_keys_gateways_need_not_know_of_each_other(render: Render) -> None:
    assert ("Role", "skirret", "skirret-gateway-units") not in roles(render("minimal"))


def test_without_the_hook_nothing_is_granted_outside_namespaces(render: Render) -> None:
    kinds = {x["kind"] for x in render("minimal", "crds.install=false")}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}


def test_the_hook_may_touch_our_two_definitions_alone(render: Render) -> None:
    role = next(x for x in render("minimal") if x["kind"] == "ClusterRole")
    assert [rule["resourceNames"] for rule in role["rules"]] == [
        ["inferencemodels.skirret.dev", "batchjobs.skirret.dev"]
    ]


def test_every_binding_is_for_the_service_account_its_role_is_named_after(render: Render) -> None:
    for binding in render("teams"):
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        role = binding["roleRef"]["name"]
        (subject,) = binding["subjects"]
        assert subject["namespace"] == "skirret"
        assert role in [subject["name"] + suffix for suffix in ("", "-lease", "-units", "-skirret")]


def test_no_service_account_mounts_a_token_by_itself(render: Render) -> None:
    accounts = [x for x in render("teams") if x["kind"] == "ServiceAccount"]
    assert {x["metadata"]["name"] for x in accounts} == {
        "skirret-operator",
        "skirret-gateway",
        "skirret-batch",
        "skirret-crds",
    }
    assert [x["automountServiceAccountToken"] for x in accounts] == [False] * len(accounts)


def test_the_table_in_the_readme_is_fresh() -> None:
    readme = Path(__file__).parents[2] / "charts/skirret/README.md"
    before, _, rest = readme.read_text().partition("<!-- rights -->\n")
    _, _, after = rest.partition("<!-- /rights -->\n")
    text = f"{before}<!-- rights -->\n{table()}<!-- /rights -->\n{after}"
    if os.environ.get("UPDATE_GOLDEN"):
        readme.write_text(text)
    assert readme.read_text() == text, "run UPDATE_GOLDEN=1 pytest tests/chart"


def table() -> str:
    rows = ["| who | where | on | may |", "|---|---|---|---|"]
    for who, where, rights in (
        ("operator", "each served namespace", OPERATOR),
        ("operator", "the release's namespace; all but create on its own alone", LEASE),
        ("gateway", "each served namespace", GATEWAY),
        ("gateway", "the release's namespace, where keys are asked for", UNITS),
        ("hook", "the cluster; our two definitions alone", HOOK),
    ):
        rows += [f"| {who} | {where} | {on} | {', '.join(may)} |" for on, may in rights.items()]
    return "\n".join(rows) + "\n"
