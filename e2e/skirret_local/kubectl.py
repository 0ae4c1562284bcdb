"""The few things the local cluster asks of its own API server, by kubectl."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from skirret_local import commands, objects
from skirret_local.network import Node


@dataclass(frozen=True, slots=True)
class Kubectl:
    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        flags = ("--kubeconfig", self.kubeconfig, "--cache-dir", self.kubeconfig.parent / "cache")
        return commands.output(self.program, *flags, *arguments, text=text)

    def apply(self, wanted: Iterable[objects.Object]) -> None:
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(wanted)})
        self(
            *("apply", "--server-side", "--force-conflicts", "--field-manager=skirret-local"),
            "--filename=-",
            text=content,
        )

    def get(self, *arguments: str) -> dict[str, Any] | None:
        found = self("get", *arguments, "--ignore-not-found", "--output=json")
        return json.loads(found) if found else None

    def is_ready(self, node: Node, since: float) -> bool:
        """Whether the node says it is ready, and has said so since the time."""
        found = self.get("node", node.name) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return any(
            condition["type"] == "Ready"
            and condition["status"] == "True"
            and datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp() >= since
            for condition in conditions
        )

    def allocatable_gpus(self, node: Node) -> int:
        found = self.get("node", node.name) or {}
        return int(found.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", 0))

    def set_gpus(self, node: Node, count: int) -> None:
        patch = json.dumps(objects.gpus(count))
        self("patch", "node", node.name, "--subresource=status", "--type=merge", "--patch", patch)

    def remove_node(self, node: Node) -> None:
        """Removes a node that has stopped, and its pods."""
        everywhere = ("--all-namespaces", f"--field-selector=spec.nodeName={node.name}")
        self("delete", "node", node.name, "--ignore-not-found")
        self("delete", "pods", *everywhere, "--force", "--grace-period=0", "--wait=false")
