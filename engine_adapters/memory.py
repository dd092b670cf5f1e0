"""The machine's memory, and the file system in it that an engine's processes share."""

import os
from collections.abc import Iterator
from pathlib import Path

from cache.sizes import format_size

from .errors import SettingsError

SHARED = Path("/dev/shm")
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def available(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes that new processes can take: the machine's, or what this control group leaves if less."""
    lines = (proc / "meminfo").read_text().splitlines()
    machine = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return min([machine, *_left_in_cgroups(proc, cgroups)])


def _left_in_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Limit less use, for each control group (version 2) around this process. File pages can be dropped."""
    entries = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    for path in (entry[2] for entry in entries if entry[0] == "0"):
        group = cgroups / path.lstrip("/")
        while group.is_relative_to(cgroups):
            limit = group / "memory.max"
            if limit.is_file() and limit.read_text().strip() != "max":
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
                yield max(0, int(limit.read_text()) - used)
            group = group.parent


def require_shared(size: int, folder: Path = SHARED, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
    """Raise SettingsError unless a host tier of `size` bytes fits into what is free there, and in memory."""
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if size > free:
        raise SettingsError(
            f"a host tier of {format_size(size)} doesn't fit into {folder}, where {free >> 20} MiB are free. "
            f"Make it smaller, or give more: `docker run --shm-size={(size >> 20) + 1024}m` or `--ipc=host`; "
            f"in Kubernetes an emptyDir of medium Memory at {folder}; else `mount -o remount,size=… {folder}`"
        )
    require(size, proc, cgroups)


def require(size: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
    """Raise SettingsError unless a host tier of `size` bytes fits into what memory is available."""
    left = available(proc, cgroups)
    if size > left:
        raise SettingsError(
            f"a host tier of {format_size(size)} doesn't fit into memory, of which {left >> 20} MiB are "
            "available here. Make it smaller, or raise the container's limit, toward which /dev/shm counts"
        )
