"""The control groups that hold everything the cluster runs, so that nothing of it can get lost.

`skirret/host` holds the control plane, `skirret/nodeN/runtime` a node's kubelet and containerd with
its shims, `skirret/nodeN/pods` the node's pods.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from skirret_local.errors import LocalError

NAME = "skirret"


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The mounted hierarchies: one on a machine with cgroup v2, one a controller with v1."""

    hierarchies: tuple[Path, ...]

    @classmethod
    def of(cls, mountinfo: str) -> Cgroups:
        """From the text of /proc/self/mountinfo."""
        found: dict[str, list[Path]] = {"cgroup": [], "cgroup2": []}
        for line in mountinfo.splitlines():
            fields, _, filesystem = line.partition(" - ")
            kind = filesystem.split(" ", 1)[0]
            if kind in found:
                found[kind].append(Path(fields.split()[4]))
        if not (found["cgroup"] or found["cgroup2"]):
            raise LocalError("no cgroups are mounted: containers can't run here")
        return cls((*found["cgroup"], *found["cgroup2"]))

    def group(self, name: str) -> Path:
        """Where processes of our own go: one hierarchy is enough to find them again."""
        return self.hierarchies[-1] / NAME / name

    def make(self, name: str) -> None:
        """Makes `skirret/<name>` in every hierarchy, ready for groups below it."""
        for hierarchy in self.hierarchies:
            folder = hierarchy
            for part in (NAME, *Path(name).parts):
                folder /= part
                folder.mkdir(exist_ok=True)
                _inherit(folder)

    def kill(self, name: str = "") -> None:
        """Ends every process at or below `skirret/<name>`, at once."""
        end = time.monotonic() + 10
        while pids := set(self._pids(name)):
            if time.monotonic() > end:
                raise LocalError(f"processes {sorted(pids)} of the cluster do not end")
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def remove(self, name: str = "") -> None:
        for folder in self._folders(name):
            _remove(folder)

    def _folders(self, name: str) -> Iterator[Path]:
        """All groups at or below `skirret/<name>`, the deepest first."""
        for hierarchy in self.hierarchies:
            for folder, _, _ in os.walk(hierarchy / NAME / name, topdown=False):
                yield Path(folder)

    def _pids(self, name: str) -> Iterator[int]:
        for folder in self._folders(name):
            with suppress(FileNotFoundError):
                yield from map(int, (folder / "cgroup.procs").read_text().split())


def _inherit(folder: Path) -> None:
    """Gives a new group what it doesn't get by itself: controllers (v2), cpus and memory (v1)."""
    controllers = folder.parent / "cgroup.controllers"
    if controllers.exists():
        wanted = " ".join(f"+{name}" for name in controllers.read_text().split())
        try:
            (folder.parent / "cgroup.subtree_control").write_text(wanted)
        except OSError as error:
            raise LocalError(
                f"{folder.parent} hands on no controllers ({error.strerror}): "
                "run on the machine itself, not in a container"
            ) from error
        return
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = folder / name
        if file.exists() and not file.read_text().strip():
            file.write_text((folder.parent / name).read_text())


def _remove(folder: Path) -> None:
    """A group whose last process has just ended stays busy for a moment."""
    end = time.monotonic() + 5
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
