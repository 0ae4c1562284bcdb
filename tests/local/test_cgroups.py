"""The cgroup hierarchies of a machine, by its mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from skirret_local.cgroups import Cgroups
from skirret_local.errors import LocalError

V1 = """\
30 23 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = V1 + "33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def test_version_1_has_a_hierarchy_a_controller() -> None:
    assert [path.name for path in Cgroups.of(V1).hierarchies] == ["cpu,cpuacct", "pids"]


def test_version_2_has_one_hierarchy() -> None:
    assert Cgroups.of(V2) == Cgroups((Path("/sys/fs/cgroup"),))


def test_a_machine_with_both_finds_its_processes_by_version_2() -> None:
    assert Cgroups.of(HYBRID).group("host") == Path("/sys/fs/cgroup/unified/skirret/host")


def test_a_machine_without_cgroups_is_refused() -> None:
    with pytest.raises(LocalError, match="no cgroups"):
        Cgroups.of("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")


def test_a_group_is_made_in_every_hierarchy_with_cpus_and_memory(tmp_path: Path) -> None:
    for name in ("cpuset", "pids"):
        (tmp_path / name).mkdir()
    for name, value in (("cpuset.cpus", "0-1\n"), ("cpuset.mems", "0\n")):
        (tmp_path / "cpuset" / name).write_text(value)
        for folder in ("skirret", "skirret/node1"):
            (tmp_path / "cpuset" / folder).mkdir(exist_ok=True)
            (tmp_path / "cpuset" / folder / name).write_text("\n")
    Cgroups((tmp_path / "cpuset", tmp_path / "pids")).make("node1")
    assert (tmp_path / "cpuset/skirret/node1/cpuset.cpus").read_text() == "0-1\n"
    assert (tmp_path / "pids/skirret/node1").is_dir()


def test_a_group_of_version_2_hands_on_every_controller(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    Cgroups((tmp_path,)).make("host")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_removing_takes_the_deepest_groups_first(tmp_path: Path) -> None:
    (tmp_path / "skirret/node1/pods/kubepods").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    Cgroups((tmp_path,)).remove()
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
