import os
import socket

import pytest

from engine_adapters.up import machine
from engine_adapters.up.errors import NotEnoughMemory, PortTaken
from engine_adapters.up.machine import GIB


def test_enough_memory_is_enough() -> None:
    machine.require_memory(2, 3 * GIB, 6 * GIB)


def test_too_little_memory_says_what_would_fit() -> None:
    with pytest.raises(NotEnoughMemory, match=r"6\.0 GiB .*5\.0 GiB are available; --replicas 1"):
        machine.require_memory(2, 3 * GIB, 5 * GIB)
    with pytest.raises(NotEnoughMemory, match="smaller model"):
        machine.require_memory(2, 3 * GIB, 2 * GIB)


def test_cores_are_shared_evenly_and_none_twice() -> None:
    assert machine.core_shares({0, 1}, 2) == [(0,), (1,)]
    assert machine.core_shares({7, 4, 5, 6, 9}, 2) == [(4, 5), (6, 7)]
    assert machine.core_shares({3}, 2) == [(), ()]


def test_a_free_port_passes() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    machine.require_port(port, "--port")


def test_a_taken_port_names_its_holder_and_the_flag() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} .*by pid {os.getpid()}, .*--engine-port"):
            machine.require_port(port, "--engine-port")
