"""What this machine has: cores, memory, GPUs, and the number format it is fast at. No torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from skirret_server.model.description import DType


@dataclass(frozen=True, slots=True)
class Memory:
    total: int  # bytes that this process may use at most
    available: int  # of those, bytes that nobody uses now
    share: float = 0.5  # of the total, for weights and cache where nothing else was asked for
    process: int = 400 << 20  # bytes for Python, torch and the step's activations
    logit: int = 0  # and for each of a step's logits, with what sampling makes of it


def cores(root: Path = Path("/")) -> int:
    """Cores this process may use, by its affinity and its container's quota."""
    allowed = len(os.sched_getaffinity(0))
    group = root / "sys/fs/cgroup"
    quota, period = (_read(group / "cpu.max") or "max 1").split()
    if quota == "max":
        quota = _read(group / "cpu/cpu.cfs_quota_us").strip()
        period = _read(group / "cpu/cpu.cfs_period_us").strip()
    if quota.isdigit():  # "-1" and "max" are none
        return max(1, min(allowed, int(quota) // int(period)))
    return allowed


def memory(root: Path = Path("/")) -> Memory:
    """The machine's, or the container's where that is less."""
    machine = _numbers(root / "proc/meminfo")
    total, available = machine["MemTotal:"] * 1024, machine["MemAvailable:"] * 1024
    for files in _CGROUPS:
        group = root / "sys/fs/cgroup" / files.folder
        limit = _read(group / files.limit).strip()
        if limit.isdigit() and int(limit) < total:
            stat = _numbers(group / "memory.stat")
            # The kernel gives up cached files, such as the weights just downloaded, when asked.
            cached = stat.get(files.inactive, 0) + stat.get(files.active, 0)
            used = int(_read(group / files.usage).strip() or 0) - cached
            return Memory(int(limit), min(available, int(limit) - used))
    return Memory(total, available)


def has_gpu(root: Path = Path("/")) -> bool:
    """Whether a driver has made one visible; whether torch can use it, only torch knows."""
    return any(each.name[6:].isdigit() for each in (root / "dev").glob("nvidia*"))


def native_dtype(root: Path = Path("/")) -> DType:
    """bfloat16 where the processor multiplies it; elsewhere it is emulated, slower than float32."""
    flags = _read(root / "proc/cpuinfo")
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


@dataclass(frozen=True, slots=True)
class _CgroupFiles:
    folder: str
    limit: str
    usage: str
    active: str
    inactive: str


_CGROUPS = (
    _CgroupFiles(".", "memory.max", "memory.current", "active_file", "inactive_file"),
    _CgroupFiles(
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_active_file",
        "total_inactive_file",
    ),
)


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in _read(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _read(path: Path) -> str:
    """Empty where this kernel or container has no such file."""
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""
