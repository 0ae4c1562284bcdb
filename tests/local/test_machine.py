"""What is the cluster's on a machine, and what is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from skirret_local import machine, processes
from skirret_local.errors import LocalError
from skirret_local.layout import Layout

MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
40 22 0:50 / /cache/local/state/node1/rootfs rw - overlay overlay rw
41 22 0:51 / /cache/local/state/node1/rootfs/proc rw - proc proc rw
42 22 8:1 /venv /cache/local/state/node1/with\\040space ro - ext4 /dev/sda1 rw
43 22 0:52 / /cache/local/state-of-another rw - overlay overlay rw
44 22 0:53 / /var/lib/docker/overlay2/merged rw - overlay overlay rw
"""


@pytest.fixture
def owned(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A layout whose cluster holds a machine of its own."""
    monkeypatch.setattr(machine, "CLAIM", layout.cache / "claim")
    layout.state.mkdir(parents=True)
    machine.CLAIM.mkdir()
    (machine.CLAIM / "owner").write_text(str(layout.local))
    (layout.state / "boot").write_text(processes.boot())
    return layout


def test_only_mounts_below_the_folder_are_the_clusters() -> None:
    found = machine.mounted_below(Path("/cache/local/state"), MOUNTS)
    assert [path.name for path in found] == ["rootfs", "proc", "with space"]


def test_a_cluster_of_this_boot_can_be_gone_on_with(owned: Layout) -> None:
    assert not machine.is_stale(owned)


def test_a_cluster_of_another_boot_is_stale(owned: Layout) -> None:
    (owned.state / "boot").write_text("another")
    assert machine.is_stale(owned)


def test_a_cluster_whose_folder_was_deleted_is_stale(owned: Layout) -> None:
    (owned.state / "boot").unlink()
    owned.state.rmdir()
    assert machine.is_stale(owned)


def test_a_machine_without_a_cluster_is_not_stale(owned: Layout) -> None:
    shutil.rmtree(machine.CLAIM)
    (owned.state / "boot").unlink()
    owned.state.rmdir()
    assert not machine.is_stale(owned)


def test_a_cluster_of_another_folder_is_left_alone_and_named(owned: Layout, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=str(owned.local)):
        machine.refuse_other(Layout(tmp_path / "other"))


def test_the_machine_of_a_deleted_folder_is_free(owned: Layout) -> None:
    (machine.CLAIM / "owner").write_text("/no/such/folder")
    machine.refuse_other(owned)


def test_what_stays_mounted_is_never_removed(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = layout.state / "node1/claim/torch.py"
    kept.parent.mkdir(parents=True)
    kept.write_text("")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 8:1 / {kept.parent} rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(machine, "MOUNTS", mounts)
    monkeypatch.setattr("skirret_local.commands.output", lambda *command: "")
    with pytest.raises(LocalError, match="still mounted"):
        machine._remove(layout.state)
    assert kept.exists()
