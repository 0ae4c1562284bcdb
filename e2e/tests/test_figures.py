"""What Skirret itself costs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from skirret_local.installation import Site


@pytest.mark.parametrize(("part", "limit"), [("operator", 128), ("gateway", 120)])
def test_resident_memory(
    site: Site,
    model: str,
    part: str,
    limit: float,
    figure: Callable[[str, float, float, str], None],
) -> None:
    (process,) = processes(f"skirret_{part}")
    figure(f"{part} resident memory", resident(process), limit, "MB")


def processes(module: str) -> list[Path]:
    """Processes on this host, containers' included, that run a module of ours."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if module.encode() in command and command[0].endswith((b"python3", b"python3.11")):
            found.append(folder)
    return found


def resident(process: Path) -> float:
    lines = (process / "status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith("VmRSS")).split()[1]) / 1024
