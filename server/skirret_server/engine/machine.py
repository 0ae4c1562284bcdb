"""What this machine has: cores, memory, and the number format it is fast at. No torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from skirret_server.model.description import DType


@dataclass(frozen=True, slots=True)
class Memory:
    total: int  # bytes that this process may use at most
    available: int  # of those, bytes that nobody uses now


def cores(root: Path = Path("/")) -> int:
    """Cores this process may use, by its affinity and its container's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = _read(root / "sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        return max(1, min(allowed, int(quota[0]) // int(quota[1])))
    return allowed


def memory(root: Path = Path("/")) -> Memory:
    """The machine's, or the container's where that is less."""
    machine = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (
            line.partition(":") for line in _read(root / "proc/meminfo").splitlines()
        )
        if value
    }
    total, available = machine["MemTotal"], machine["MemAvailable"]
    limit = _read(root / "sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        used = int(_read(root / "sys/fs/cgroup/memory.current").strip() or 0)
        total = min(total, int(limit))
        available = min(available, int(limit) - used)
    return Memory(total, available)


def native_dtype(root: Path = Path("/")) -> DType:
    """bfloat16 where the processor multiplies it; elsewhere it is emulated, slower than float32."""
    flags = _read(root / "proc/cpuinfo")
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def _read(path: Path) -> str:
    """Empty where this kernel or container has no such file."""
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""
