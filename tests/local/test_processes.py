"""Components are found again by boot, pid and start time, and by nothing less."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skirret_local import processes
from skirret_local.cgroups import Cgroups
from skirret_local.processes import Component, Processes, Record

BOOT = "4f4b9a0e-6d0c-4b56-a7a1-7d9b3a0a3b11"
SLEEP = "import signal, time; {}; time.sleep(60)"


def stat(pid: int = 42, name: str = "etcd", state: str = "S", started: int = 7777) -> str:
    return f"{pid} ({name}) {state} 1 42 42 0 -1 4194560 {' '.join(['0'] * 12)} {started} 0 0\n"


def record(line: str | None = None, boot: str = BOOT) -> Record:
    return Record.parse(f"{boot}\nfingerprint\n{line or stat()}")


def test_a_record_is_the_process_it_was_made_of() -> None:
    assert record().is_process(BOOT, stat())


def test_a_record_outlives_the_launcher_becoming_its_program() -> None:
    assert record(stat(name="sh")).is_process(BOOT, stat(name="kube-apiserver"))


def test_a_pid_used_again_is_another_process() -> None:
    assert not record().is_process(BOOT, stat(started=8888))


def test_no_process_survives_a_reboot() -> None:
    assert not record().is_process("another boot", stat())


def test_a_zombie_has_ended() -> None:
    assert not record().is_process(BOOT, stat(state="Z"))


def test_a_process_that_is_gone_has_ended() -> None:
    assert not record().is_process(BOOT, None)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=15))
def test_no_name_of_a_program_confuses_a_record(name: str) -> None:
    assert record(stat(name=name)).started == "7777"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Processes]:
    """Processes in a folder that stands in for a cgroup."""
    group = tmp_path / "skirret/host"
    group.mkdir(parents=True)
    found = Processes(tmp_path / "records", tmp_path / "logs", Cgroups((tmp_path,)))
    yield found
    found.stop("sleeper", within=0)


def component(program: str = "pass", **changes: object) -> Component:
    sleeper = Component("sleeper", (sys.executable, "-c", SLEEP.format(program)), health="/none")
    return dataclasses.replace(sleeper, **changes)  # type: ignore[arg-type]


def test_a_component_is_started_once(running: Processes) -> None:
    assert [running.ensure(component()), running.ensure(component())] == [True, False]


def test_a_started_component_leads_a_session_of_its_own(running: Processes) -> None:
    running.ensure(component())
    started = running.alive("sleeper")
    assert started
    assert os.getsid(started.pid) == started.pid


def test_a_started_component_is_in_its_cgroup(running: Processes, tmp_path: Path) -> None:
    running.ensure(component())
    started = running.alive("sleeper")
    assert started
    assert (tmp_path / "skirret/host/cgroup.procs").read_text() == f"{started.pid}\n"


def test_a_killed_component_is_started_again(running: Processes) -> None:
    running.ensure(component())
    first = running.alive("sleeper")
    assert first
    os.kill(first.pid, signal.SIGKILL)
    processes.until(lambda: running.alive("sleeper") is None, 5)
    assert running.ensure(component())


def test_a_changed_command_restarts_a_component(running: Processes) -> None:
    running.ensure(component())
    assert running.ensure(component("pass; pass"))


def test_a_changed_file_restarts_a_component(running: Processes, tmp_path: Path) -> None:
    running.ensure(component(files={tmp_path / "config": "one"}))
    assert running.ensure(component(files={tmp_path / "config": "two"}))


def test_a_components_files_are_for_its_owner_alone(running: Processes, tmp_path: Path) -> None:
    running.ensure(component(files={tmp_path / "config": "secret"}))
    assert (tmp_path / "config").stat().st_mode & 0o777 == 0o600


def test_a_component_that_ignores_the_polite_signal_is_ended_all_the_same(
    running: Processes,
) -> None:
    running.ensure(component("signal.signal(signal.SIGTERM, signal.SIG_IGN)"))
    running.stop("sleeper", within=0.3)
    assert running.alive("sleeper") is None


def test_what_a_component_says_is_in_its_log(running: Processes) -> None:
    running.ensure(component("print('the reason', flush=True)"))
    assert processes.until(lambda: running.last_words("sleeper") == "the reason", 5)
