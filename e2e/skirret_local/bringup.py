"""Brings every process of the cluster up, in the order they need each other."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from skirret_local import (
    certificates,
    commands,
    components,
    configuration,
    health,
    images,
    machine,
    objects,
)
from skirret_local.errors import LocalError
from skirret_local.kubectl import Kubectl
from skirret_local.layout import Layout
from skirret_local.network import Node
from skirret_local.processes import Component, Processes
from skirret_local.steps import step

BUCKET = "skirret"
START = 60.0  # seconds within which a component must answer


class Bringup:
    """The components of a cluster of some nodes, to be had running or looked at."""

    def __init__(
        self, layout: Layout, programs: components.Programs, store_keys: tuple[str, str]
    ) -> None:
        self._layout = layout
        self._programs = programs
        self._store_keys = store_keys
        self._processes = Processes(layout.processes, layout.logs, machine.cgroups())
        self._kubectl = Kubectl(programs.kubectl, layout.kubeconfig)

    def up(self, wanted: list[Node], gpus: int) -> None:
        layout = self._layout
        machine.claim(layout, wanted)
        certificates.make(layout.certificates, certificates.certificates(wanted))
        layout.kubeconfig.touch(mode=0o600)
        layout.kubeconfig.write_text(configuration.kubeconfig(layout, certificates.ADMIN))
        with step("local Kubernetes: starting etcd, store, containerd and the API server"):
            ground = self._ground(wanted)
            self._ensure(ground)
            self._await(ground[:1])
            api_server = components.api_server(layout, self._programs)
            self._ensure([api_server])
            self._await(ground)
        images.load(layout, wanted)
        with step("local Kubernetes: starting controllers, kubelets, proxy and DNS") as doing:
            self._await([api_server])
            self._remove_others(wanted)
            self._kubectl.apply(objects.system())
            upper = self._upper(wanted)
            now = int(time.time()) + 1  # what was said in this second may be older
            started = self._ensure(upper)
            self._await(upper)
            for node in wanted:
                since = now if f"{node.name}-kubelet" in started else 0
                ready = partial(self._kubectl.is_ready, node, since)
                doing.wait(ready, f"{node.name} to be ready", within=START)
        self._make_bucket()
        self._pretend_gpus(wanted, gpus)

    def status(self, wanted: list[Node]) -> dict[str, str]:
        def state(component: Component) -> str:
            record = self._processes.alive(component.name)
            if record is None:
                return "not running"
            return f"{'up' if health.answers(component.health) else 'no answer'}, pid {record.pid}"

        every = [*self._ground(wanted), components.api_server(self._layout, self._programs)]
        every += self._upper(wanted)
        return {component.name: state(component) for component in every}

    def _ground(self, wanted: list[Node]) -> list[Component]:
        """What needs nothing else."""
        return [
            components.etcd(self._layout, self._programs),
            components.store(self._layout, self._programs, *self._store_keys),
            *(components.containerd(self._layout, self._programs, node) for node in wanted),
        ]

    def _upper(self, wanted: list[Node]) -> list[Component]:
        """What needs the API server."""
        return [
            components.controller_manager(self._layout, self._programs),
            components.scheduler(self._layout, self._programs),
            components.dns(self._layout, self._programs),
            components.proxy(self._layout, self._programs, wanted[0]),
            *(components.kubelet(self._layout, self._programs, node) for node in wanted),
        ]

    def _ensure(self, wanted: Iterable[Component]) -> set[str]:
        return {component.name for component in wanted if self._processes.ensure(component)}

    def _await(self, wanted: Iterable[Component]) -> None:
        for component in wanted:
            end = time.monotonic() + START
            while not health.answers(component.health):
                alive = self._processes.alive(component.name)
                if not alive or time.monotonic() > end:
                    raise LocalError(
                        f"{component.name} {'does not answer' if alive else 'has ended'}; the end "
                        f"of its log:\n{self._processes.last_words(component.name)}"
                    )
                time.sleep(0.05)

    def _remove_others(self, wanted: list[Node]) -> None:
        """Removes the nodes of an earlier, larger cluster."""
        for folder in sorted(self._layout.state.glob("node*")):
            node = Node(int(folder.name.removeprefix("node")))
            if node not in wanted:
                self._processes.stop(f"{node.name}-kubelet")
                self._kubectl.remove_node(node)
                self._processes.stop(f"{node.name}-containerd")
                machine.give_back_node(self._layout, node)

    def _make_bucket(self) -> None:
        def shell(command: str) -> str:
            weed = (self._programs.weed, "shell", f"-master={components.MASTER}")
            return commands.output(*weed, text=f"{command}\n")

        if BUCKET not in shell("s3.bucket.list").split():
            shell(f"s3.bucket.create -name {BUCKET}")

    def _pretend_gpus(self, wanted: list[Node], count: int) -> None:
        changed = [node for node in wanted if self._kubectl.allocatable_gpus(node) != count]
        if not changed:
            return
        with step(f"local Kubernetes: pretending {count} GPUs a node") as doing:
            for node in changed:
                self._kubectl.set_gpus(node, count)
            for node in changed:
                offered = partial(self._offers, node, count)
                doing.wait(offered, f"{node.name} to offer them", within=START)

    def _offers(self, node: Node, count: int) -> bool:
        return self._kubectl.allocatable_gpus(node) == count
