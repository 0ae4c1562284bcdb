"""The base image: Debian's own Python 3.11, unpacked from its packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

from skirret_local import commands
from skirret_local.buildah import DOCKER, Buildah
from skirret_local.layout import Layout, scratch
from skirret_local.steps import step

PACKAGES = DOCKER / "base.packages"
TOOLS = ("sh", "ls", "cat", "env", "sleep", "kill", "ps", "mkdir", "wget", "nslookup")
PIP_WHEELS = "usr/share/python-wheels"
DIST_PACKAGES = "usr/local/lib/python3.11/dist-packages"


def build(layout: Layout, buildah: Buildah) -> str:
    """The name of the base image, which is built if it isn't there: a minute with the download."""
    recipe = [PACKAGES.read_text(), (DOCKER / "base.Dockerfile").read_text(), *TOOLS]
    name = f"localhost/skirret-base:{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}"
    if buildah.id(name):
        return name
    environment = {**os.environ, "PATH": commands.PATH}
    with step("base image: unpacking Debian's Python") as doing, scratch(layout.images) as folder:
        debs, root = folder / "debs", folder / "root"
        debs.mkdir()
        for command in (["update"], ["download", *PACKAGES.read_text().split()]):
            for line in commands.lines("apt-get", *command, cwd=debs, environment=environment):
                doing.tell(line[:60])
        for deb in debs.glob("*.deb"):
            commands.output("dpkg-deb", "--extract", deb, root)
        _furnish(root)
        for line in buildah.build(name, "base.Dockerfile", root):
            doing.tell(line[:60])
    return name


def _furnish(root: Path) -> None:
    """Makes a root file system of unpacked packages: links, users, pip; no documentation."""
    for name in ("doc", "man", "locale", "lintian", "bug"):
        shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
    for name in ("bin", "tmp", "root", "etc", DIST_PACKAGES):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for tool in TOOLS:
        (root / "bin" / tool).symlink_to("busybox")
    for name in ("python", "python3"):
        (root / "usr/bin" / name).symlink_to("python3.11")
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    (pip,) = (root / PIP_WHEELS).glob("pip-*.whl")
    with zipfile.ZipFile(pip) as wheel:
        wheel.extractall(root / DIST_PACKAGES)
    shutil.rmtree(root / PIP_WHEELS)
