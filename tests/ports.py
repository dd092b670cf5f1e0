"""Ports for servers of tests."""

import contextlib
import random
import socket
from pathlib import Path

_LOWEST = 10_000
_PICKS = random.SystemRandom()
"""Of its own: tests in several processes begin with one seed."""


def free_port(count: int = 1) -> int:
    """The first of `count` neighbours on which nobody listens.

    They lie below the range from which the kernel picks, so until the server is there no connection of
    another test gets one by chance.
    """
    picked, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        first = _PICKS.randrange(_LOWEST, max(int(picked), 2 * _LOWEST) - count)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probes.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
