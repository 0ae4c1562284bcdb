"""The images of the local cluster, built by buildah without a registry, and their import."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from skirret_local import base_image, commands
from skirret_local.buildah import DOCKER, Buildah
from skirret_local.configuration import PAUSE_IMAGE
from skirret_local.errors import LocalError
from skirret_local.layout import ROOT, Layout, scratch
from skirret_local.network import Node
from skirret_local.steps import step

IMAGE = "localhost/skirret:dev"
EXTRAS = ("operator", "gateway", "batch")
SOURCES = ("crds/skirret_api", "operator", "server")


def prepare(layout: Layout) -> None:
    """Builds what doesn't change with our code: the base image and the pause image."""
    buildah = Buildah(layout.images)
    base_image.build(layout, buildah)
    archive = _archive(layout, PAUSE_IMAGE)
    program = hashlib.sha256((layout.programs / "pause").read_bytes()).hexdigest()
    if _stamp(archive) != program:
        with step("pause image: building"):
            for _ in buildah.build(PAUSE_IMAGE, "pause.Dockerfile", layout.programs):
                pass
            _export(buildah, PAUSE_IMAGE, archive, program)


def build(layout: Layout) -> None:
    """Builds the image of our code, unless it is of these sources already."""
    archive = _archive(layout, IMAGE)
    buildah = Buildah(layout.images)
    base = base_image.build(layout, buildah)
    wheels = _wheels(layout)
    wanted = _hash([base, wheels.name, *_source_texts()])
    if _stamp(archive) == wanted:
        return
    with step(f"image {IMAGE}: building") as doing:
        buildah.tidy()
        for line in buildah.build(
            IMAGE,
            "skirret.Dockerfile",
            ROOT,
            *("--ignorefile", str(DOCKER / "skirret.Dockerfile.dockerignore")),
            *("--build-arg", f"BASE={base}", "--build-arg", "PIP_NO_INDEX=1"),
            *("--build-arg", f"PIP_FIND_LINKS=/wheels/{wheels.name}"),
            *("--volume", f"{layout.wheels}:/wheels:ro"),
        ):
            doing.tell(line[:60])
        _export(buildah, IMAGE, archive, wanted)


def load(layout: Layout, nodes: Sequence[Node]) -> None:
    """Imports every built image into each node that hasn't this build of it."""
    for archive in sorted(layout.images.glob("*.tar")):
        built = _stamp(archive)
        for node in nodes:
            loaded = layout.node(node.name) / f"images/{archive.stem}"
            if built is None or (loaded.exists() and loaded.read_text() == built):
                continue
            with step(f"image {archive.stem}: loading into {node.name}"):
                socket = layout.containerd_socket(node.name)
                ctr = ("ctr", "--address", socket, "--namespace", "k8s.io")
                commands.output(*ctr, "images", "import", archive)
            loaded.parent.mkdir(exist_ok=True)
            loaded.write_text(built)


def build_of(layout: Layout, name: str) -> str:
    """What the image was last built of; raises LocalError if it wasn't."""
    built = _stamp(_archive(layout, name))
    if built is None:
        raise LocalError(f"image {name} isn't built: python -m skirret_local images")
    return built


def requirements(project: str, extras: Iterable[str]) -> list[str]:
    """What pyproject.toml's text requires with the extras, and to build the wheel."""
    content = tomllib.loads(project)
    optional = content["project"]["optional-dependencies"]
    return [
        *content["build-system"]["requires"],
        *content["project"]["dependencies"],
        *(requirement for extra in extras for requirement in optional[extra]),
    ]


def _wheels(layout: Layout) -> Path:
    """A folder of the wheels the image installs, of the versions this environment has."""
    wanted = requirements((ROOT / "pyproject.toml").read_text(), EXTRAS)
    pins = sorted(
        f"{found.name}=={found.version}" for found in metadata.distributions() if found.name
    )
    folder = layout.wheels / _hash([*wanted, *pins])[:12]
    if folder.exists():
        return folder
    with (
        step("wheels: collecting what the image installs") as doing,
        scratch(layout.wheels) as new,
    ):
        constraints = new / "constraints.txt"
        constraints.write_text("\n".join(pins))
        pip = (sys.executable, "-m", "pip", "wheel", "--wheel-dir", new / "wheels")
        for line in commands.lines(*pip, "--constraint", constraints, *wanted):
            doing.tell(line.strip()[:60])
        for old in set(layout.wheels.iterdir()) - {new}:
            shutil.rmtree(old)
        (new / "wheels").rename(folder)
    return folder


def _source_texts() -> Iterator[str]:
    """Everything the image is made of, but base and wheels."""
    files = [
        DOCKER / "skirret.Dockerfile",
        *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE")),
    ]
    for folder in SOURCES:
        found = (ROOT / folder).rglob("*")
        files += sorted(x for x in found if x.is_file() and "__pycache__" not in x.parts)
    for path in files:
        yield f"{path.relative_to(ROOT)}\n{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _export(buildah: Buildah, name: str, archive: Path, stamp: str) -> None:
    """Writes the image as an archive containerd imports; its stamp last, so that it is whole."""
    archive.with_suffix(".stamp").unlink(missing_ok=True)
    archive.unlink(missing_ok=True)
    # Not oci-archive: that would be compressed, four times as slowly.
    buildah("push", name, f"docker-archive:{archive}:{name}")
    archive.with_suffix(".stamp").write_text(stamp)


def _archive(layout: Layout, name: str) -> Path:
    return layout.images / f"{name.rpartition('/')[2].replace(':', '-')}.tar"


def _stamp(archive: Path) -> str | None:
    stamp = archive.with_suffix(".stamp")
    return stamp.read_text() if stamp.exists() else None


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
