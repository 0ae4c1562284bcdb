"""What the cluster takes from the machine, and gives back: addresses, settings, groups, mounts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from skirret_local import commands, health, processes
from skirret_local.cgroups import Cgroups
from skirret_local.errors import LocalError
from skirret_local.layout import Layout
from skirret_local.network import API_PORT, BRIDGE, HOST, STORE_GRPC, STORE_PORTS, Node

MOUNTS = Path("/proc/self/mountinfo")

# Whose the machine's bridge, addresses and groups are, and its settings as they were before. Not in
# the cluster's own folder, which may get lost.
CLAIM = Path("/run/skirret-local")

# The first is ours to set, the others the kubelet's and kube-proxy's; all are put back.
FORWARDING = "net.ipv4.ip_forward"
SETTINGS = (
    FORWARDING,
    "kernel.keys.root_maxbytes",
    "kernel.keys.root_maxkeys",
    "kernel.panic",
    "kernel.panic_on_oops",
    "net.ipv4.conf.all.route_localnet",
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
    "net.netfilter.nf_conntrack_tcp_timeout_established",
    "vm.overcommit_memory",
    "vm.panic_on_oom",
)

# Left by containerd, the CNI library, the kubelet, SeaweedFS and kubectl in places that can't be
# chosen.
SHIM_SOCKETS = Path("/run/containerd/s")
CNI_RESULTS = Path("/var/lib/cni/results")
CONTAINER_LOGS = Path("/var/log/containers")
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
STORE_SOCKETS = Path("/tmp")
DISCOVERY = Path.home() / f".kube/cache/discovery/{HOST}_{API_PORT}"


def cgroups() -> Cgroups:
    return Cgroups.of(MOUNTS.read_text())


def owner() -> Path | None:
    """The folder of the cluster that is up on this machine, if it still exists."""
    note = CLAIM / "owner"
    if not note.exists():
        return None
    folder = Path(note.read_text())
    return folder if folder.exists() else None


def is_stale(layout: Layout) -> bool:
    """Whether what is left of a cluster can't be gone on with: it is of another boot, or lost."""
    boot = layout.state / "boot"
    if boot.exists():
        return boot.read_text() != processes.boot() or owner() != layout.local
    return layout.state.exists() or CLAIM.exists()


def refuse_other(layout: Layout) -> None:
    other = owner()
    if other and other != layout.local:
        raise LocalError(
            f"the local Kubernetes of {other} is up on this machine; first take it down: "
            f"SKIRRET_CACHE={other.parent} python -m skirret_local down"
        )


def claim(layout: Layout, nodes: list[Node]) -> None:
    """Takes what the cluster needs of the machine; again without change."""
    CLAIM.mkdir(exist_ok=True)
    (CLAIM / "owner").write_text(str(layout.local))
    _note_settings(CLAIM / "settings.json")
    layout.state.mkdir(parents=True, exist_ok=True)
    (layout.state / "boot").write_text(processes.boot())
    _setting(FORWARDING).write_text("1")
    groups = cgroups()
    groups.make("host")
    links = commands.output("ip", "-json", "link", "show")
    if BRIDGE not in [link["ifname"] for link in json.loads(links)]:
        commands.output("ip", "link", "add", BRIDGE, "type", "bridge")
    for node in nodes:
        commands.output("ip", "address", "replace", f"{node.address}/32", "dev", BRIDGE)
        groups.make(f"{node.name}/runtime")
        groups.make(f"{node.name}/pods")
    commands.output("ip", "link", "set", BRIDGE, "up")


def give_back_node(layout: Layout, node: Node) -> None:
    """Ends whatever runs on the node and removes all it left."""
    groups = cgroups()
    groups.kill(node.name)
    groups.remove(node.name)
    commands.output("ip", "address", "flush", "dev", BRIDGE, "to", f"{node.address}/32")
    _remove(layout.node(node.name))


def give_back(layout: Layout) -> None:
    """Ends whatever the cluster runs and removes all it left; nothing of it need be known."""
    groups = cgroups()
    groups.kill()
    if commands.find("nft"):
        _remove_tables("kube-proxy")
    for link in json.loads(commands.output("ip", "-json", "link", "show")):
        if link["ifname"] == BRIDGE:
            commands.output("ip", "link", "delete", BRIDGE)
    groups.remove()
    _restore_settings(CLAIM / "settings.json")
    _remove_strays(layout.state)
    unmount(layout.local)  # the state, and what an interrupted build of an image left
    _remove(layout.state)
    if CLAIM.exists():
        shutil.rmtree(CLAIM)


def _remove_tables(name: str) -> None:
    for entry in json.loads(commands.output("nft", "--json", "list", "tables"))["nftables"]:
        table = entry.get("table", {})
        if table.get("name") == name:
            commands.output("nft", "delete", "table", table["family"], name)


def _remove(folder: Path) -> None:
    """Removes a folder, but nothing that is mounted in it: a claim of ours is the real thing."""
    unmount(folder)
    if folder.exists():
        shutil.rmtree(folder)


def unmount(folder: Path) -> None:
    """Unmounts all below the folder, what was mounted last first."""
    for point in reversed(mounted_below(folder, MOUNTS.read_text())):
        commands.output("umount", point)
    if left := mounted_below(folder, MOUNTS.read_text()):
        raise LocalError(f"still mounted: {', '.join(map(str, left))}")


def mounted_below(folder: Path, mountinfo: str) -> list[Path]:
    """The mount points at or below a folder, from the text of /proc/self/mountinfo."""
    points = [Path(_plain(line.split(" ", 5)[4])) for line in mountinfo.splitlines()]
    return [point for point in points if point == folder or folder in point.parents]


def _plain(path: str) -> str:
    """Without the octal escapes of space, tab, newline and backslash."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(escape, character)
    return path


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def _note_settings(note: Path) -> None:
    if not note.exists():
        found = {name: _setting(name) for name in SETTINGS}
        values = {name: path.read_text() for name, path in found.items() if path.exists()}
        note.write_text(json.dumps(values))


def _restore_settings(note: Path) -> None:
    if note.exists():
        for name, value in json.loads(note.read_text()).items():
            path = _setting(name)
            if path.exists() and path.read_text() != value:
                path.write_text(value)


def _remove_strays(state: Path) -> None:
    """What is ours in folders that aren't."""
    for link in CONTAINER_LOGS.glob("*.log"):
        if link.is_symlink() and state in link.readlink().parents:
            link.unlink()
    for note in CNI_RESULTS.glob("*"):
        if str(state) in note.read_text():
            note.unlink()
    for port in STORE_PORTS:
        for socket in STORE_SOCKETS.glob(f"seaweedfs-*-grpc-{port + STORE_GRPC}.sock"):
            socket.unlink()
    for socket in (*SHIM_SOCKETS.glob("*"), DEVICE_PLUGINS):
        if not health.answers(str(socket)):  # nobody's any more
            socket.unlink(missing_ok=True)
    if DISCOVERY.exists():  # the next cluster at this address knows other kinds
        shutil.rmtree(DISCOVERY)
    for folder in (SHIM_SOCKETS, CNI_RESULTS, CONTAINER_LOGS, DEVICE_PLUGINS.parent):
        for empty in (folder, folder.parent):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()
