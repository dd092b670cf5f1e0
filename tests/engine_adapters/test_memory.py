import os
from pathlib import Path

import pytest

from engine_adapters import memory
from engine_adapters.errors import SettingsError

GIB = 1 << 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n")
    (folder / "self/cgroup").write_text("0::/outer/inner\n")
    return folder


def group(folder: Path, limit: str, current: int, inactive_file: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")


def test_the_machine_without_limits(proc: Path, tmp_path: Path) -> None:
    assert memory.available(proc, tmp_path / "cgroups") == 8 * GIB


def test_a_control_group_leaves_less(proc: Path, tmp_path: Path) -> None:
    cgroups = tmp_path / "cgroups"
    group(cgroups / "outer/inner", "max", 0, 0)
    group(cgroups / "outer", str(4 * GIB), 3 * GIB, GIB)
    assert memory.available(proc, cgroups) == 2 * GIB


def test_a_host_tier_fits_into_shared_memory_or_does_not(tmp_path: Path) -> None:
    stat = os.statvfs(tmp_path)
    memory.require_shared(1 << 20, tmp_path)
    with pytest.raises(
        SettingsError, match=rf"doesn't fit into {tmp_path}, where \d+ MiB are free.*--shm-size="
    ):
        memory.require_shared(2 * stat.f_bavail * stat.f_frsize, tmp_path)


def test_a_host_tier_fits_into_memory_or_does_not(proc: Path, tmp_path: Path) -> None:
    cgroups = tmp_path / "cgroups"
    group(cgroups / "outer", str(3 << 20), 1 << 20, 0)
    memory.require_shared(2 << 20, tmp_path, proc, cgroups)
    with pytest.raises(SettingsError, match="3MiB doesn't fit into memory, of which 2 MiB are available"):
        memory.require_shared(3 << 20, tmp_path, proc, cgroups)
