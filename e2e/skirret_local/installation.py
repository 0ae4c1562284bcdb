"""One installation of Skirret on a cluster, as its users reach it: kubectl, helm, openai, S3."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class TookTooLong(AssertionError):
    """Something awaited did not come true in time; the message holds the last thing seen."""


@dataclass(frozen=True, slots=True)
class Site:
    """`kube` are kubectl's flags that choose the cluster, `helm_kube` helm's."""

    kubectl_path: str
    helm_path: str
    kube: Sequence[str]
    helm_kube: Sequence[str]
    namespace: str
    release: str = "skirret"
    values: Sequence[str] = field(default=())

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints; raises CalledProcessError with its words in `stderr`."""
        done = subprocess.run(
            [self.kubectl_path, *self.kube, "--namespace", self.namespace, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise KubectlFailed(" ".join(arguments), done.stderr.strip())
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return found

    def find(self, *arguments: str) -> dict[str, Any] | None:
        text = self.kubectl("get", *arguments, "--output=json", "--ignore-not-found")
        return json.loads(text) if text else None

    def apply(self, manifest: str | dict[str, Any]) -> None:
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        self.kubectl("apply", "--filename=-", stdin=text)

    def install(self) -> None:
        """Installs or upgrades the chart and waits until operator and gateway are ready."""
        command = [
            self.helm_path, *self.helm_kube, "upgrade", "--install", self.release,
            str(ROOT / "charts/skirret"), "--namespace", self.namespace, "--wait", "--timeout=180s",
            *self.values,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"helm could not install the chart: {done.stderr.strip()}")

    def uninstall(self) -> None:
        subprocess.run(
            [self.helm_path, *self.helm_kube, "uninstall", self.release, "--namespace",
             self.namespace, "--wait", "--ignore-not-found"],
            check=True,
            capture_output=True,
        )  # fmt: skip

    def gateway(self) -> str:
        """The gateway's URL by its cluster address, which a local cluster's host can reach."""
        address = self.get("service", f"{self.release}-gateway")["spec"]["clusterIP"]
        return f"http://{address}:8080"

    def client(self, **options: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.gateway()}/v1", api_key="none", **options)

    def model(self, name: str) -> dict[str, Any]:
        return self.get("inferencemodel.skirret.dev", name)

    def condition(self, kind: str, name: str, wanted: str) -> dict[str, Any]:
        """One condition of a resource's status; empty while it isn't there."""
        found = self.find(kind, name) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((x for x in conditions if x["type"] == wanted), {})

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Pods that are not on their way out."""
        items = self.get("pods", f"--selector={selector}")["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


class KubectlFailed(Exception):
    """kubectl refused; `said` is what it said."""

    def __init__(self, command: str, said: str) -> None:
        super().__init__(f"kubectl {command}: {said}")
        self.said = said


def until(what: str, look: Callable[[], T | None], within: float, every: float = 0.2) -> T:
    """The first truthy thing `look` sees; raises TookTooLong after `within` seconds."""
    deadline = time.monotonic() + within
    seen = look()
    while not seen:
        if time.monotonic() > deadline:
            raise TookTooLong(f"{what}: not within {within:.0f} s; last seen: {seen!r}")
        time.sleep(every)
        seen = look()
    return seen
