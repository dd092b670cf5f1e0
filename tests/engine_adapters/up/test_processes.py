import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from engine_adapters.up import processes
from engine_adapters.up.processes import Child, Identity, Record
from tests.waiting import until

TREE = """
import os, signal, subprocess, sys, time
if {stubborn}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("ready", flush=True)
time.sleep(60)
"""

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process with a child of its own, and wait for both."""
    started: list[Child] = []

    def make(name: str = "x", *, stubborn: bool = False) -> Child:
        command = [sys.executable, "-c", TREE.format(stubborn=stubborn)]
        child = Child(name, command, os.environ, tmp_path / f"{name}.log")
        started.append(child)
        until(lambda: len(child.record.members()) == 2 and "ready" in child.log.read_text())
        return child

    yield make
    for child in started:
        processes.end([child.record], grace=0)
        child.process.wait()


def test_ending_one_ends_its_tree_and_not_the_other(start: Start) -> None:
    one, other = start("one"), start("other")
    tree = one.record.members()
    assert processes.end([one.record], grace=10) == 2
    assert not any(processes.is_alive(process) for process in tree)
    assert len(other.record.members()) == 2


def test_what_ignores_the_request_is_killed_after_the_grace(start: Start) -> None:
    child = start(stubborn=True)
    processes.end([child.record], grace=0.3)
    assert child.process.wait() == -signal.SIGKILL


def test_a_frozen_tree_ends_by_request(start: Start) -> None:
    child = start()
    child.signal(signal.SIGSTOP)
    processes.end([child.record], grace=10)
    assert child.process.wait() == -signal.SIGTERM


def test_orphans_are_found_when_their_first_process_is_gone(start: Start) -> None:
    child = start()
    child.process.kill()
    child.process.wait()
    assert len(child.record.members()) == 1
    assert processes.end([child.record], grace=10) == 1


def test_a_recycled_number_is_nobody_of_ours(start: Start) -> None:
    child = start()
    leader = Identity(child.process.pid, child.record.leader.started - 1)
    stale = msgspec.structs.replace(child.record, leader=leader)
    assert stale.members() == set()
    assert processes.end([stale], grace=0) == 0
    assert child.running


def test_a_strangers_session_of_the_same_number_is_not_ours(start: Start, tmp_path: Path) -> None:
    child = start()
    child.process.kill()
    child.process.wait()
    stale = Record("x", child.record.leader, str(tmp_path / "another.log"))
    assert stale.members() == set()


def test_a_deleted_log_still_marks_its_processes(start: Start) -> None:
    child = start()
    child.log.unlink()
    assert len(child.record.members()) == 2


def test_a_process_that_has_ended_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    identity = processes.identify(process.pid)
    until(lambda: not processes.is_alive(identity))
    process.wait()
    with pytest.raises(ProcessLookupError):
        processes.identify(process.pid)


def test_log_end(tmp_path: Path) -> None:
    child = Child("x", ["sh", "-c", "seq 50; echo oops >&2"], os.environ, tmp_path / "logs/x.log")
    child.process.wait()
    assert child.log_end(3) == "49\n50\noops"
