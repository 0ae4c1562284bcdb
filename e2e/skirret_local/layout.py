"""Where the local Kubernetes keeps its files: what can be made again, and what a cluster is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skirret_local.errors import LocalError

ROOT = Path(__file__).resolve().parents[2]

# A Unix socket's path has at most 107 characters; the longest below `state` is the kubelet's
# node1/kubelet/device-plugins/kubelet.sock.
LONGEST_STATE = 107 - len("/node1/kubelet/device-plugins/kubelet.sock")


@dataclass(frozen=True, slots=True)
class Layout:
    """All paths below one cache folder; `state` alone belongs to the running cluster."""

    cache: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Layout:
        layout = cls(Path(environment.get("SKIRRET_CACHE") or ROOT / ".cache").resolve())
        if len(str(layout.state)) > LONGEST_STATE:
            raise LocalError(
                f"the cache folder {layout.cache} has too long a path for Unix sockets: "
                f"set SKIRRET_CACHE to one shorter by {len(str(layout.state)) - LONGEST_STATE}"
            )
        return layout

    @property
    def models(self) -> Path:
        return self.cache / "models"

    @property
    def local(self) -> Path:
        return self.cache / "local"

    @property
    def lock(self) -> Path:
        return self.local / "lock"

    @property
    def programs(self) -> Path:
        """The compiled binaries: cluster, helm, pause."""
        return self.local / "programs"

    @property
    def images(self) -> Path:
        return self.local / "images"

    @property
    def wheels(self) -> Path:
        return self.local / "wheels"

    @property
    def state(self) -> Path:
        return self.local / "state"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def processes(self) -> Path:
        return self.state / "processes"

    @property
    def certificates(self) -> Path:
        return self.state / "certificates"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def node(self, name: str) -> Path:
        return self.state / name

    def containerd_socket(self, name: str) -> Path:
        return self.node(name) / "containerd.sock"


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder for work under way in another; one that a crash left is cleared."""
    path = folder / "scratch"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)
