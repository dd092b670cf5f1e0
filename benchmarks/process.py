"""What a process tree costs, from /proc: CPU time and resident memory."""

import os
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


class ProcessTree:
    """A process and all its descendants, as they are at each call."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_seconds(self) -> float:
        """User + system time so far, of descendants that have ended too, to the clock tick (10 ms).

        Fields 14 to 17 of /proc/PID/stat: own user and system time, and those of reaped children.
        """
        return sum(sum(map(int, stat[11:15])) for stat in self._stats()) * TICK

    def rss_bytes(self) -> int:
        """Resident memory; pages that several processes share count once for each."""
        return sum(int(stat[21]) for stat in self._stats()) * os.sysconf("SC_PAGE_SIZE")

    def _stats(self) -> list[list[str]]:
        pids = [self.pid]
        for pid in pids:
            pids += _children(pid)
        stats = [stat for pid in pids if (stat := _stat(pid))]
        if not stats:
            raise ProcessLookupError(f"process {self.pid} has ended: its log says why")
        return stats


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, path.read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            continue
    return children
