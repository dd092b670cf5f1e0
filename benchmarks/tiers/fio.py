"""fio: what the disk gives to O_DIRECT at the best queue depth."""

import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.tiers.contender import REGION_BYTES

DEPTHS = (1, 2, 4, 8, 16)


class FioMissing(Exception):
    """fio isn't installed; the message says what to do."""


def run(path: Path, what: str, offset: int, size: int, depth: int) -> float:
    """Seconds that fio takes to "read" or "write" a range of a file in 1 MiB blocks.

    Its buffers are random and filled once: making more would take its time, not the disk's.
    """
    command = [
        "fio", "--name=x", f"--filename={path}", f"--rw={what}", "--bs=1m", "--direct=1",
        "--ioengine=io_uring", f"--iodepth={depth}", f"--offset={offset}", f"--size={size}",
        "--output-format=json", "--fallocate=none",
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    job = json.loads(said[said.index("{") :])["jobs"][0]
    return size / float(job[what]["bw_bytes"])


def best_depth(path: Path, what: str, offset: int) -> int:
    """The queue depth with the best median rate over a region, of three runs each, interleaved.

    All read or write the same region, so that how the disk holds it is the same for all.
    """
    if shutil.which("fio") is None:
        raise FioMissing("fio isn't installed: apt-get install fio")
    seconds: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for _ in range(3):
        for depth in DEPTHS:
            seconds[depth].append(run(path, what, offset, REGION_BYTES, depth))
    return min(DEPTHS, key=lambda depth: sorted(seconds[depth])[1])
