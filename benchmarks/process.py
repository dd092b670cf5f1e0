"""What a process tree costs, from /proc: CPU time and resident memory."""

import os
import time
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


class ProcessTree:
    """A process and all its descendants, as they are at each call."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_seconds(self) -> float:
        """User + system time so far: of live processes to the nanosecond, of reaped ones to the tick (10 ms).

        A live one's own CPU clock is read (clock_getcpuclockid(3)), which /proc/PID/stat rounds to ticks;
        fields 16 and 17 there hold the time of children that have ended.
        """
        return sum(_own_seconds(pid) + sum(map(int, stat[13:15])) * TICK for pid, stat in self._stats())

    def rss_bytes(self) -> int:
        """Resident memory; pages that several processes share count once for each."""
        return sum(int(stat[21]) for _, stat in self._stats()) * os.sysconf("SC_PAGE_SIZE")

    def _stats(self) -> list[tuple[int, list[str]]]:
        pids = [self.pid]
        for pid in pids:
            pids += _children(pid)
        stats = [(pid, stat) for pid in pids if (stat := _stat(pid))]
        if not stats:
            raise ProcessLookupError(f"process {self.pid} has ended: its log says why")
        return stats


def core_busy_seconds(core: int) -> float:
    """Time that a core spent on anything but idling, since boot: to tell whether others used it too."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{core} "):
            user, nice, system, _, _, *interrupts_and_steal = map(int, line.split()[1:9])
            return (user + nice + system + sum(interrupts_and_steal)) * TICK
    raise ValueError(f"this machine has no core {core}")


def _own_seconds(pid: int) -> float:
    clock = (~pid << 3) | 2  # CPUCLOCK_SCHED of another process
    try:
        return time.clock_gettime_ns(clock) / 1e9
    except OSError:  # it ended meanwhile
        return 0.0


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
