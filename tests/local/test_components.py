"""The commands and files of the cluster's processes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from skirret_local import components, configuration
from skirret_local.components import Programs
from skirret_local.layout import Layout
from skirret_local.network import Node
from skirret_local.processes import Component


@pytest.fixture
def programs() -> Programs:
    names = ("cluster", "helm", "kubectl", "etcd", "weed", "containerd", "cni")
    return Programs(*(Path("/programs") / name for name in names))


@pytest.fixture
def every(certified: Layout, programs: Programs) -> list[Component]:
    node = Node(2)
    return [
        components.etcd(certified, programs),
        components.store(certified, programs, "access", "secret"),
        components.api_server(certified, programs),
        components.controller_manager(certified, programs),
        components.scheduler(certified, programs),
        components.proxy(certified, programs, Node(1)),
        components.dns(certified, programs),
        components.containerd(certified, programs, node),
        components.kubelet(certified, programs, node),
    ]


def test_every_component_has_a_name_of_its_own(every: list[Component]) -> None:
    assert len({component.name for component in every}) == len(every)


def test_every_component_keeps_its_files_in_the_state(
    every: list[Component], layout: Layout
) -> None:
    paths = [path for component in every for path in component.files]
    assert [path for path in paths if layout.state not in path.parents] == []


def test_no_component_listens_where_another_machine_could_ask(every: list[Component]) -> None:
    text = "\n".join(line for x in every for line in [*x.command, x.health, *x.files.values()])
    assert "0.0.0.0:" not in text
    assert "=0.0.0.0" not in text


def test_only_the_nodes_own_processes_are_in_the_nodes_cgroup(every: list[Component]) -> None:
    found = {component.name for component in every if component.cgroup == "node2/runtime"}
    assert found == {"node2-containerd", "node2-kubelet"}


def test_the_store_reports_nothing_to_its_makers(every: list[Component]) -> None:
    (store,) = [component for component in every if component.name == "store"]
    assert "-master.telemetry=false" in store.command


def test_the_stores_keys_are_not_on_its_command_line(every: list[Component]) -> None:
    (store,) = [component for component in every if component.name == "store"]
    assert "secret" not in " ".join(store.command)


def test_two_nodes_share_no_address_no_pods_and_no_folder(layout: Layout) -> None:
    one, two = (json.loads(configuration.kubelet(layout, Node(n))) for n in (1, 2))
    different = {"address", "healthzBindAddress", "cgroupRoot", "containerRuntimeEndpoint"}
    assert [name for name in different if one[name] == two[name]] == []
    assert Node(1).pods != Node(2).pods


def test_a_kubeconfig_is_whole_in_itself(certified: Layout) -> None:
    content = json.loads(configuration.kubeconfig(certified, "admin"))
    key = content["users"][0]["user"]["client-key-data"]
    assert b"PRIVATE KEY" in base64.b64decode(key)
    assert str(certified.cache) not in json.dumps(content)


def test_the_audit_log_holds_no_contents() -> None:
    (rule,) = json.loads(configuration.audit_policy())["rules"]
    assert rule == {"level": "Metadata"}


def test_containerds_sockets_and_mounts_stay_in_the_state(layout: Layout) -> None:
    text = configuration.containerd(layout, Node(1), "/usr/lib/cni")
    paths = [line.split('"')[1] for line in text.splitlines() if '= "/' in line]
    assert [path for path in paths if not path.startswith(str(layout.state))] == ["/usr/lib/cni"]
