import os
import subprocess
import sys
from pathlib import Path

from engine_adapters.vllm.inside import shm


def test_only_regions_of_the_dead_are_removed(tmp_path: Path) -> None:
    mine, left, other = (tmp_path / name for name in (f"{shm.PREFIX}a", f"{shm.PREFIX}b", "vllm_offload_c"))
    for path in (mine, left, other):
        path.touch()
    descriptor = os.open(mine, os.O_RDWR)
    shm.own(descriptor)
    killed = (
        "import fcntl, os, sys; file = os.open(sys.argv[1], os.O_RDWR); "
        "fcntl.flock(file, fcntl.LOCK_SH); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", killed, str(left)], check=False)
    assert shm.remove_abandoned(tmp_path) == [left]
    assert sorted(tmp_path.iterdir()) == sorted([mine, other])
    os.close(descriptor)
    assert shm.remove_abandoned(tmp_path) == [mine]
