"""What this machine has to give: memory, cores, ports."""

import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import NotEnoughMemory, PortTaken

GIB = 1 << 30
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def available_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
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


def require_memory(replicas: int, each: int, available: int) -> None:
    """Raise NotEnoughMemory unless `replicas` of `each` bytes fit into `available`."""
    if replicas * each > available:
        fits = available // each
        remedy = f"--replicas {fits} would fit" if fits else "free some, or use a smaller model"
        raise NotEnoughMemory(
            f"{replicas} replicas need about {replicas * each / GIB:.1f} GiB ({each / GIB:.1f} GiB each), "
            f"and {available / GIB:.1f} GiB are available; {remedy}"
        )


def core_shares(cores: Iterable[int], replicas: int) -> list[tuple[int, ...]]:
    """Divide `cores` evenly, each to one replica; the shares are empty where there are too few."""
    ordered = sorted(cores)
    each = len(ordered) // replicas
    return [tuple(ordered[i * each : (i + 1) * each]) for i in range(replicas)]


def require_port(port: int, flag: str) -> None:
    """Raise PortTaken if somebody listens on `port` of the loopback address; `flag` is what changes it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTaken(
                f"port {port} can't be used ({error.strerror}{_holder(port)}); "
                f"end that process, or choose another port with {flag}"
            ) from error


def _holder(port: int) -> str:
    """Name who listens on `port`, as far as this user may know."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for link in PROC.glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) in wanted:
                process = link.parent.parent
                return f" by pid {process.name}, {(process / 'comm').read_text().strip()}"
        except OSError:  # ended meanwhile, or another user's
            continue
    return ""


def _listening_inodes(port: int) -> Iterator[str]:
    listen = "0A"
    for table in (PROC / "net/tcp", PROC / "net/tcp6"):
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                local, state, inode = (line.split()[i] for i in (1, 3, 9))
                if state == listen and int(local.rpartition(":")[2], 16) == port:
                    yield inode
