"""A cluster as kubectl knows it: the user's own kubeconfig, context and login plugins."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class ClusterError(Exception):
    """The cluster refused or couldn't be asked; the message is for the user."""


class Cluster(Protocol):
    """Targets are `resource/name`. Every call raises ClusterError when it fails."""

    def get(self, target: str) -> dict[str, Any]: ...

    def patch(self, target: str, patch: Mapping[str, Any]) -> None: ...


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Kubectl:
    """A Cluster that calls kubectl with the flags the user gave."""

    def __init__(self, flags: Sequence[str], run: Run = run) -> None:
        self._flags = tuple(flags)
        self._run = run

    def get(self, target: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._call("get", target, "--output=json"))
        return found

    def patch(self, target: str, patch: Mapping[str, Any]) -> None:
        self._call("patch", target, "--type=merge", f"--patch={json.dumps(patch)}")

    def _call(self, *arguments: str) -> str:
        try:
            done = self._run(["kubectl", *self._flags, *arguments])
        except FileNotFoundError as error:
            raise ClusterError("kubectl is not on the PATH: install it first") from error
        if done.returncode:
            raise ClusterError(done.stderr.strip() or f"kubectl ended with {done.returncode}")
        return done.stdout
