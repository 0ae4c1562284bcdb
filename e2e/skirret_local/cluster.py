"""The local Kubernetes, as the demo, the tests and the command line use it.

Every function may be called again, and after a crash at any point of an earlier call.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skirret_local import configuration, images, machine, objects, prerequisites, programs
from skirret_local.bringup import BUCKET, Bringup
from skirret_local.errors import LocalError
from skirret_local.kubectl import Kubectl
from skirret_local.layout import Layout
from skirret_local.network import S3_CLUSTER_URL, S3_URL, Node, first_nodes
from skirret_local.progress import say
from skirret_local.steps import step


@dataclass(frozen=True, slots=True)
class Store:
    """The S3 store: `endpoint` as this machine reaches it, `cluster_endpoint` as pods do."""

    endpoint: str
    cluster_endpoint: str
    access_key: str
    secret_key: str
    bucket: str


@dataclass(frozen=True, slots=True)
class Info:
    """How to reach the cluster."""

    kubeconfig: Path
    context: str
    kubectl: Path
    helm: Path
    image: str
    store: Store
    nodes: dict[str, str]
    models: Path
    audit_log: Path
    logs: Path


@dataclass(frozen=True, slots=True)
class Shape:
    """What was last asked for: kept when the next `up` doesn't say."""

    nodes: int = 1
    gpus: int = 0


def prepare(layout: Layout | None = None) -> None:
    """Installs and builds what doesn't change with our code; needs only the standard library."""
    layout = layout or Layout.from_environment()
    prerequisites.check_machine()
    with _alone(layout):
        _prepare(layout)


def up(*, nodes: int | None = None, gpus: int | None = None, layout: Layout | None = None) -> Info:
    """Has the cluster run, with so many nodes and so many pretend GPUs on each."""
    layout = layout or Layout.from_environment()
    prerequisites.check_machine()
    machine.refuse_other(layout)
    with _alone(layout):
        _prepare(layout)
        if machine.is_stale(layout):
            say("the cluster left by an earlier run can't be gone on with: taking it down")
            machine.give_back(layout)
        shape = _shape(layout, nodes, gpus)
        _bringup(layout).up(first_nodes(shape.nodes), shape.gpus)
        _shape_file(layout).write_text(json.dumps([shape.nodes, shape.gpus]))
    say(f"local Kubernetes: up, {shape.nodes} node(s) with {shape.gpus} GPUs each")
    return info(layout)


def down(layout: Layout | None = None) -> None:
    """Ends the cluster and everything in it, and gives the machine back as it was."""
    layout = layout or Layout.from_environment()
    prerequisites.check_machine()
    other = machine.owner()
    if other and other != layout.local:
        say(f"no cluster of {layout.local} is up; the one of {other} is left alone")
        return
    with _alone(layout), step("local Kubernetes: taking it down"):
        machine.give_back(layout)


def build_images(layout: Layout | None = None) -> str:
    """Builds the image of the present code and loads it into the nodes; returns its name."""
    layout = layout or Layout.from_environment()
    prerequisites.check_machine()
    with _alone(layout):
        _prepare(layout)
        images.build(layout)
        if _is_up(layout):
            images.load(layout, _nodes(layout))
    return images.IMAGE


def image_id(layout: Layout | None = None) -> str:
    """Changes with each build of the image, so that pods can be made to follow."""
    return images.build_of(layout or Layout.from_environment(), images.IMAGE)


def namespace(name: str, layout: Layout | None = None) -> None:
    """Makes a namespace that enforces the restricted Pod Security Standard."""
    _kubectl(layout or Layout.from_environment()).apply([objects.namespace(name)])


def volumes(namespace: str, layout: Layout | None = None) -> None:
    """Makes the read-only claims `site-packages` and `models` in a namespace."""
    layout = layout or Layout.from_environment()
    kubectl = _kubectl(layout)
    layout.models.mkdir(parents=True, exist_ok=True)
    folders = {"site-packages": Path(sysconfig.get_path("purelib")), "models": layout.models}
    for name, path in folders.items():
        volume, claim = objects.volume(name, namespace, path)
        found = kubectl.get("persistentvolume", volume["metadata"]["name"])
        if found and found["status"].get("phase") in ("Released", "Failed"):
            # It belongs to a claim of a namespace that is gone, and takes no other.
            kubectl("delete", "persistentvolume", volume["metadata"]["name"])
        kubectl.apply([volume, claim])
    for name in folders:
        bound = "--for=jsonpath={.status.phase}=Bound"
        kubectl("wait", bound, f"persistentvolumeclaim/{name}", "-n", namespace, "--timeout=60s")


def info(layout: Layout | None = None) -> Info:
    """How to reach the cluster; raises LocalError when none is up."""
    layout = layout or Layout.from_environment()
    _kubectl(layout)
    found = programs.find(layout)
    access_key, secret_key = _store_keys(layout)
    return Info(
        kubeconfig=layout.kubeconfig,
        context=configuration.CONTEXT,
        kubectl=found.kubectl,
        helm=found.helm,
        image=images.IMAGE,
        store=Store(S3_URL, S3_CLUSTER_URL, access_key, secret_key, BUCKET),
        nodes={node.name: node.address for node in _nodes(layout)},
        models=layout.models,
        audit_log=layout.audit_log,
        logs=layout.logs,
    )


def status(layout: Layout | None = None) -> dict[str, str]:
    """Each component of the cluster and how it is; empty when no cluster is up."""
    layout = layout or Layout.from_environment()
    if not _is_up(layout):
        return {}
    return _bringup(layout).status(_nodes(layout))


@contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Waits until no other process changes the cluster of this folder."""
    layout.local.mkdir(parents=True, exist_ok=True)
    with layout.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another skirret_local that is at work")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _prepare(layout: Layout) -> None:
    prerequisites.install_packages()
    if not programs.are_built(layout):
        prerequisites.check_go()
        prerequisites.check_disk(layout.local)
        programs.build(layout)
    images.prepare(layout)


def _bringup(layout: Layout) -> Bringup:
    return Bringup(layout, programs.find(layout), _store_keys(layout))


def _shape_file(layout: Layout) -> Path:
    """Written when all is up."""
    return layout.state / "shape.json"


def _is_up(layout: Layout) -> bool:
    return _shape_file(layout).exists() and not machine.is_stale(layout)


def _shape(layout: Layout, nodes: int | None = None, gpus: int | None = None) -> Shape:
    file = _shape_file(layout)
    last = Shape(*json.loads(file.read_text())) if file.exists() else Shape()
    return Shape(
        nodes=last.nodes if nodes is None else nodes,
        gpus=last.gpus if gpus is None else gpus,
    )


def _nodes(layout: Layout) -> list[Node]:
    return first_nodes(_shape(layout).nodes)


def _kubectl(layout: Layout) -> Kubectl:
    if not _is_up(layout):
        raise LocalError("no local Kubernetes is up: python -m skirret_local up")
    return Kubectl(programs.find(layout).kubectl, layout.kubeconfig)


def _store_keys(layout: Layout) -> tuple[str, str]:
    """The store's keys, made once for each cluster."""
    file = layout.state / "store-keys.json"
    if not file.exists():
        layout.state.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps([secrets.token_hex(10), secrets.token_hex(20)]))
        new.rename(file)
    access_key, secret_key = json.loads(file.read_text())
    return access_key, secret_key
