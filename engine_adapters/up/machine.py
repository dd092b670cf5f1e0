"""What this machine has to give to a fleet: memory, cores, ports."""

import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import NotEnoughMemory, PortTaken

GIB = 1 << 30
PROC = Path("/proc")


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
