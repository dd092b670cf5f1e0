import os
import subprocess
import sys

import pytest

from benchmarks.process import ProcessTree, core_busy_seconds

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BURN!r}])
then_wait = {BURN!r} + "print(flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", then_wait], stdin=subprocess.PIPE)
child.wait()
"""


def test_cpu_time_and_memory_include_descendants_ended_or_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        tree = ProcessTree(parent.pid)
        cpu, rss = tree.cpu_seconds(), tree.rss_bytes()
        parent.terminate()
    assert 0.58 <= cpu < 1.5
    assert rss > 8 << 20


def test_a_sleeping_process_costs_nothing() -> None:
    with subprocess.Popen(["sleep", "10"]) as sleeper:
        assert ProcessTree(sleeper.pid).cpu_seconds() < 0.05
        sleeper.terminate()


def test_an_ended_process_is_told() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with pytest.raises(ProcessLookupError, match="has ended"):
        ProcessTree(ended.pid).cpu_seconds()


def test_this_process_is_measured() -> None:
    assert ProcessTree(os.getpid()).cpu_seconds() > 0


def test_a_core_that_works_is_busy() -> None:
    core = min(os.sched_getaffinity(0))
    before = core_busy_seconds(core)
    subprocess.run(["taskset", "-c", str(core), sys.executable, "-c", BURN], check=True)
    assert core_busy_seconds(core) - before >= 0.25
    with pytest.raises(ValueError, match="no core 100000"):
        core_busy_seconds(100000)
