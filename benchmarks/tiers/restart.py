"""Restarts of a full folder, and what a page at rest costs in memory. Each in a process of its own."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.process import ProcessTree
from benchmarks.report import Report
from benchmarks.stats import median_interval
from benchmarks.tiers.data import BASE, SPACE, buffer, cut, drop_caches, page
from cache.tiers.base import Outcome, Write
from cache.tiers.ssd import Limits, Ssd
from cache.tiers.ssd.records import slot_bytes

REPEATS = 5


def measure(report: Report, folder: Path) -> None:
    count, size = 100_000, 64 << 10
    _run("fill", folder / "restart", count, size)
    times = []
    for _ in range(REPEATS):
        drop_caches()
        times.append(_run("open", folder / "restart", count, size)["seconds"])
    middle = median_interval(times)
    report.add("restart with 100,000 × 64 KiB pages", middle.median, "s", spread=middle.spread)
    count, size = 1_000_000, 4 << 10
    filled = _run("fill", folder / "resident", count, size)
    report.add("RSS a resident ssd page, over 1M pages", filled["rss"] / count, "B")
    reopened = _run("open", folder / "resident", count, size)
    report.add("RSS a resident ssd page after a restart", reopened["rss"] / count, "B")
    report.add("restart with 1,000,000 × 4 KiB pages", reopened["seconds"], "s")


def _run(what: str, folder: Path, count: int, size: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.tiers.restart", what, str(folder), str(count), str(size)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(said.stdout)
    return result


def _open(folder: Path, count: int, size: int) -> Ssd:
    return Ssd(folder, BASE.fingerprint, size, Limits(cap=(count + count // 16) * (slot_bytes(size) + 256)))


def _fill(store: Ssd, count: int, size: int) -> None:
    (content,) = cut(buffer(1, size), size)

    def write(first: int) -> None:
        for number in range(first, count, 4):
            assert store.write(SPACE, [Write(page(number), [content], number + 1)]) == [Outcome.DONE]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))


def _child(what: str, folder: Path, count: int, size: int) -> dict[str, float]:
    own = ProcessTree(os.getpid())
    before = own.rss_bytes()
    begin = time.perf_counter()
    store = _open(folder, count, size)
    seconds = time.perf_counter() - begin
    if what == "fill":
        _fill(store, count, size)
    after = own.rss_bytes()
    assert store.usage().pages == count, f"{store.usage().pages} of {count} pages are there"
    store.close()
    return {"seconds": seconds, "rss": after - before}


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
