"""What the machine must be and have; what Debian's packages bring is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from skirret_local import commands
from skirret_local.errors import LocalError
from skirret_local.programs import CNI_FOLDERS, go_environment
from skirret_local.steps import step

OS_RELEASE = Path("/etc/os-release")
GO = (1, 25)
PYTHON = (3, 11)
DISK = 8e9

# Debian's package for each program; none is installed whose program is there already.
PACKAGES = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "ip": "iproute2",
    "mount": "mount",
    "nft": "nftables",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "runc": "runc",
    "setsid": "util-linux",
}
CNI_PACKAGE = "containernetworking-plugins"


def check_machine() -> None:
    """Refuses a machine that can't run the cluster, with all reasons at once."""
    reasons = []
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        reasons.append(f"it runs on Linux on x86_64, this is {sys.platform} {os.uname().machine}")
    if os.geteuid() != 0:
        reasons.append("it needs root, for containers and their network: run it with sudo")
    release = OS_RELEASE.read_text() if OS_RELEASE.exists() else ""
    if not is_debian_12(release):
        reasons.append(
            f"it takes programs and the images' base from Debian 12, this is {name_of(release)}"
        )
    if sys.version_info[:2] != PYTHON:
        reasons.append(
            "the images share Python packages with this machine and have Python 3.11, "
            f"this is {sys.version.split()[0]}"
        )
    if reasons:
        raise LocalError(
            "the local Kubernetes can't run here:\n  - "
            + "\n  - ".join(reasons)
            + "\nwithout it: `make serve` (one process), `make demo CONTEXT=…` (your own cluster)"
        )


def check_go() -> None:
    environment = go_environment()
    try:
        done = subprocess.run(
            ["go", "version"], env=dict(environment), capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise LocalError(
            "Go is missing, which compiles Kubernetes: install Go 1.25 or newer (go.dev/dl)"
        ) from error
    if go_version(done.stdout) < GO:
        raise LocalError(
            f"Go is too old to compile Kubernetes: {done.stdout.strip()}; "
            "install Go 1.25 or newer (go.dev/dl)"
        )


def check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < DISK:
        raise LocalError(
            f"too little room to build in: {free / 1e9:.0f} GB free at {folder}, "
            f"and Go's caches, images and programs take {DISK / 1e9:.0f}; "
            "make room, or set SKIRRET_CACHE to a folder on another disk"
        )


def install_packages() -> None:
    missing = missing_packages()
    if not missing:
        return
    environment = {
        **os.environ,
        "PATH": commands.PATH,
        "DEBIAN_FRONTEND": "noninteractive",
        "RUNLEVEL": "1",  # installs services without starting them
    }
    with step(f"Debian packages: installing {' '.join(missing)}") as doing:
        for command in (
            ["dpkg", "--configure", "-a"],  # an installation that was interrupted
            ["apt-get", "update"],
            ["apt-get", "install", "--yes", "--no-install-recommends", *missing],
        ):
            for line in commands.lines(*command, environment=environment):
                doing.tell(line[:60])


def missing_packages() -> list[str]:
    missing = {package for program, package in PACKAGES.items() if not commands.find(program)}
    if not any((folder / "ptp").exists() for folder in CNI_FOLDERS):
        missing.add(CNI_PACKAGE)
    return sorted(missing)


def is_debian_12(release: str) -> bool:
    fields = _fields(release)
    return fields.get("ID") == "debian" and fields.get("VERSION_ID") == "12"


def name_of(release: str) -> str:
    return _fields(release).get("PRETTY_NAME", "an unknown system")


def go_version(text: str) -> tuple[int, int]:
    """(1, 25) from `go version go1.25.3 linux/amd64`; (0, 0) if it says no such thing."""
    found = re.search(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _fields(release: str) -> Mapping[str, str]:
    pairs = (line.partition("=") for line in release.splitlines())
    return {name: value.strip('"') for name, _, value in pairs}
