"""A machine that can't run the cluster is told why, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skirret_local import commands, layout, network, prerequisites, programs
from skirret_local.errors import LocalError
from skirret_local.layout import LONGEST_STATE, Layout

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'
UBUNTU = 'PRETTY_NAME="Ubuntu 24.04 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n'


def test_debian_12_is_known_by_its_release_file() -> None:
    assert [prerequisites.is_debian_12(text) for text in (DEBIAN, UBUNTU, "")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26)),
        ("go version go1.9 linux/amd64", (1, 9)),
        ("go version devel +abc", (0, 0)),
    ],
)
def test_gos_version_is_compared_as_numbers(said: str, version: tuple[int, int]) -> None:
    assert prerequisites.go_version(said) == version


def test_all_reasons_against_a_machine_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    release = tmp_path / "os-release"
    release.write_text(UBUNTU)
    monkeypatch.setattr(prerequisites, "OS_RELEASE", release)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LocalError) as refused:
        prerequisites.check_machine()
    assert "sudo" in str(refused.value)
    assert "Ubuntu 24.04 LTS" in str(refused.value)


def test_an_old_go_is_refused_with_what_it_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(LocalError, match="1.19.8"):
        prerequisites.check_go()


def test_only_packages_of_missing_programs_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"ip", "mount", "openssl", "setsid", "containerd", "runc", "nft"}
    monkeypatch.setattr(commands, "find", lambda name: name if name in present else None)
    monkeypatch.setattr(prerequisites, "CNI_FOLDERS", ())
    assert prerequisites.missing_packages() == [
        "buildah",
        "conntrack",
        "containernetworking-plugins",
        "nginx-light",
    ]


def test_a_cache_too_deep_for_sockets_is_refused_with_the_way_out() -> None:
    deep = "/" + "d" * LONGEST_STATE
    with pytest.raises(LocalError, match="SKIRRET_CACHE"):
        Layout.from_environment({"SKIRRET_CACHE": deep})


def test_the_cache_is_in_the_checkout_unless_said_otherwise() -> None:
    assert Layout.from_environment({}).cache == layout.ROOT / ".cache"


@pytest.mark.parametrize("count", [0, 10])
def test_a_number_of_nodes_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(LocalError, match="1 to 9"):
        network.first_nodes(count)


def test_a_missing_python_package_is_named() -> None:
    with pytest.raises(LocalError, match="no-such-package"):
        programs._packaged("no-such-package", "bin/none")


def test_a_failed_command_tells_what_it_said() -> None:
    with pytest.raises(LocalError, match="the reason"):
        commands.output("sh", "-c", "echo the reason >&2; exit 3")


def test_a_failed_command_with_progress_tells_what_it_said() -> None:
    with pytest.raises(LocalError, match="the reason"):
        list(commands.lines("sh", "-c", "echo the reason >&2; exit 3"))
