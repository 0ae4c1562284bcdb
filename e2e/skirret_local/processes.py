"""Starts the cluster's processes so that they outlive this one, and finds them again.

A process is known by its boot, pid and start time, so that a pid used again is never mistaken for
it. Its record is written before its program starts: no crash leaves one that isn't known.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from skirret_local import commands
from skirret_local.cgroups import Cgroups
from skirret_local.errors import LocalError

BOOT = Path("/proc/sys/kernel/random/boot_id")
START_TIME = 19  # position in /proc/PID/stat after the name, which may hold spaces

# $1 record, $2 fingerprint, $3 cgroup, $4 log, then the command. Becomes the command.
LAUNCH = """
set -e
record=$1 fingerprint=$2 group=$3 log=$4
shift 4
echo $$ > "$group/cgroup.procs"
{ cat /proc/sys/kernel/random/boot_id; echo "$fingerprint"; cat "/proc/$$/stat"; } > "$record.new"
mv "$record.new" "$record"
exec "$@" </dev/null >>"$log" 2>&1
"""


@dataclass(frozen=True, slots=True)
class Component:
    """A program of the cluster.

    `files` are written before it starts; `health` is the URL, or the path of the Unix socket, that
    answers when it is up.
    """

    name: str
    command: tuple[str, ...]
    health: str
    cgroup: str = "host"
    files: Mapping[Path, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Changes with anything the program would have to be restarted for."""
        program = os.stat(self.command[0])
        parts = [*self.command, str(program.st_mtime_ns), str(program.st_size)]
        parts += [f"{path}\n{text}" for path, text in self.files.items()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Record:
    """Which process a component is."""

    boot: str
    fingerprint: str
    pid: int
    started: str

    @classmethod
    def parse(cls, text: str) -> Record:
        boot, fingerprint, stat = text.splitlines()
        return cls(boot, fingerprint, int(stat.split(" ", 1)[0]), _fields(stat)[START_TIME])

    def is_process(self, boot: str, stat: str | None) -> bool:
        """Whether the line of /proc/PID/stat now is this process, and it hasn't ended."""
        if stat is None or boot != self.boot:
            return False
        fields = _fields(stat)
        return fields[START_TIME] == self.started and fields[0] not in "ZX"


def _fields(stat: str) -> list[str]:
    return stat.rpartition(")")[2].split()


@dataclass(frozen=True, slots=True)
class Processes:
    """The running components, by their records in one folder."""

    records: Path
    logs: Path
    cgroups: Cgroups

    def alive(self, name: str) -> Record | None:
        """The component's record if its process lives."""
        path = self.records / name
        if not path.exists():
            return None
        record = Record.parse(path.read_text())
        return record if record.is_process(boot(), _stat(record.pid)) else None

    def ensure(self, component: Component) -> bool:
        """Has the component running as described; True if it had to be started."""
        record = self.alive(component.name)
        if record and record.fingerprint == component.fingerprint:
            return False
        self.stop(component.name)
        for path, text in component.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(text)
        self._start(component)
        return True

    def stop(self, name: str, within: float = 10.0) -> None:
        """Ends the component's process group, by force after `within` seconds."""
        record = self.alive(name)
        if record:
            _signal(record, signal.SIGTERM)
            if not until(lambda: self.alive(name) is None, within):
                _signal(record, signal.SIGKILL)
                until(lambda: self.alive(name) is None, within)
        (self.records / name).unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def last_words(self, name: str, count: int = 15) -> str:
        lines = self.log(name).read_text(errors="replace").splitlines()[-count:]
        return "\n".join(line[:300] for line in lines)

    def _start(self, component: Component) -> None:
        for folder in (self.records, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        record = self.records / component.name
        group = self.cgroups.group(component.cgroup)
        log = self.log(component.name)
        launch = (*("sh", "-c", LAUNCH, "sh"), record, component.fingerprint, group, log)
        # setsid forks, so that the process is nobody's child here and leaves no zombie. It returns
        # when the component holds neither of our pipes: after its record is written.
        commands.output("setsid", "--fork", *launch, *component.command)
        if not record.exists():
            raise LocalError(f"{component.name} could not be started in {group}")


def boot() -> str:
    return BOOT.read_text().strip()


def _stat(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _signal(record: Record, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(record.pid, how)


def until(condition: Callable[[], bool], within: float) -> bool:
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
