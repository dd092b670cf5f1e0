"""The memory that an engine's processes share: a file system of its own, often small in containers."""

import os
from pathlib import Path

from .errors import SettingsError
from .sizes import format_size

FOLDER = Path("/dev/shm")


def require(size: int, folder: Path = FOLDER) -> None:
    """Raise SettingsError unless a host tier of `size` bytes fits into what is free there."""
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if size > free:
        raise SettingsError(
            f"a host tier of {format_size(size)} doesn't fit into {folder}, where {free >> 20} MiB are free. "
            f"Make it smaller, or give more: `docker run --shm-size={(size >> 20) + 1024}m` or `--ipc=host`; "
            f"in Kubernetes an emptyDir of medium Memory at {folder}; else `mount -o remount,size=… {folder}`"
        )
