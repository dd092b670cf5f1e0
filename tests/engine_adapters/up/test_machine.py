import os
import socket
from pathlib import Path

import pytest

from engine_adapters.up import machine
from engine_adapters.up.errors import NotEnoughMemory, PortTaken
from engine_adapters.up.machine import GIB


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
    assert machine.available_memory(proc, tmp_path / "cgroups") == 8 * GIB


def test_a_control_group_leaves_less(proc: Path, tmp_path: Path) -> None:
    cgroups = tmp_path / "cgroups"
    group(cgroups / "outer/inner", "max", 0, 0)
    group(cgroups / "outer", str(4 * GIB), 3 * GIB, GIB)
    assert machine.available_memory(proc, cgroups) == 2 * GIB


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
