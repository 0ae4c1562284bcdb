"""What a process may use of its machine, as the kernel's files tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skirret_server.engine.machine import Memory, cores, memory, native_dtype


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 8,000 kB without limits."""
    write(tmp_path / "proc/meminfo", "MemTotal:  8000 kB\nMemFree: 9 kB\nMemAvailable:  7000 kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_container_the_machine_is_all(root: Path) -> None:
    write(root / "sys/fs/cgroup/memory.max", "max\n")
    write(root / "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert memory(root) == Memory(8_192_000, 7_168_000)
    assert cores(root) == cores(Path("/nowhere")) >= 1


def test_a_container_bounds_memory_and_cached_files_count_as_free(root: Path) -> None:
    group = root / "sys/fs/cgroup"
    write(group / "memory.max", "1000000\n")
    write(group / "memory.current", "400000\n")
    write(group / "memory.stat", "anon 100000\nactive_file 100000\ninactive_file 200000\n")
    assert memory(root) == Memory(1_000_000, 900_000)


def test_so_does_one_of_the_older_kind(root: Path) -> None:
    group = root / "sys/fs/cgroup/memory"
    write(group / "memory.limit_in_bytes", "1000000\n")
    write(group / "memory.usage_in_bytes", "400000\n")
    write(group / "memory.stat", "cache 1\ntotal_active_file 0\ntotal_inactive_file 300000\n")
    assert memory(root) == Memory(1_000_000, 900_000)


def test_an_older_container_without_a_limit_has_a_huge_one(root: Path) -> None:
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory(root) == Memory(8_192_000, 7_168_000)


def test_a_quota_bounds_cores(root: Path) -> None:
    write(root / "sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert cores(root) == 1
    (root / "sys/fs/cgroup/cpu.max").unlink()
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    write(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cores(root) == 1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx2", "float32"), ("avx512_bf16", "bfloat16"), ("amx_bf16 amx_tile", "bfloat16")],
)
def test_the_number_format_is_one_the_processor_multiplies(
    root: Path, flags: str, expected: str
) -> None:
    write(root / "proc/cpuinfo", f"flags : {flags}\n")
    assert native_dtype(root) == expected
