"""`ssd` against fio on the same disk, and against others' file-system tiers.

Our tier is full when its writes are timed, as a tier is most of its life: each page that it writes evicts
another and takes its slot. fio overwrites a file likewise; the others make new files, since theirs has no
bound. Then each reads back what it wrote in these rounds, each region once and with dropped caches, so that
what is read is at rest and equally old.

A round times each contender once, and each round begins with another, so that nobody always comes after the
same one. What a contender left in the page cache is written back before the next one's turn.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.report import Report
from benchmarks.stats import median_interval, paired_ratios
from benchmarks.tiers import fio
from benchmarks.tiers.contender import REGION_BYTES, REGIONS, ROUNDS, Contender, Turn, rounds
from benchmarks.tiers.data import drop_caches
from benchmarks.tiers.peers import PEERS, start

FRESH_DEPTH = 8


def measure(report: Report, folder: Path) -> None:
    ours = Contender("ours", sys.executable, Path(__file__).parent / "ours.py", folder / "ours")
    peers = start(report, folder)
    disk = folder / "fio.dat"
    with disk.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, REGIONS * REGION_BYTES)
    _fill(report, ours, disk)
    _write(report, ours, peers, disk)
    _read(report, ours, peers, disk)
    for contender in (ours, *peers.values()):
        contender.close()


def _fill(report: Report, ours: Contender, disk: Path) -> None:
    """Into space that was never written."""

    def by_fio(region: int) -> float:
        return fio.run(disk, "write", region * REGION_BYTES, REGION_BYTES, FRESH_DEPTH)

    seconds = rounds(REGIONS, {"ours": ours.write, "fio": by_fio})
    ratio = paired_ratios(seconds["fio"], seconds["ours"])
    report.add("ssd write into new space / fio O_DIRECT", ratio.median, spread=ratio.spread)


def _write(report: Report, ours: Contender, peers: Mapping[str, Contender], disk: Path) -> None:
    depth = fio.best_depth(disk, "write", 2 * ROUNDS * REGION_BYTES)
    report.note(f"fio writes at queue depth {depth}, its best of {', '.join(map(str, fio.DEPTHS))}.")
    turns: dict[str, Turn] = {
        "ours": lambda region: ours.write(REGIONS + region),
        "fio": lambda region: fio.run(disk, "write", region * REGION_BYTES, REGION_BYTES, depth),
    }
    _report(report, "write", rounds(ROUNDS, turns | {name: peer.write for name, peer in peers.items()}))


def _read(report: Report, ours: Contender, peers: Mapping[str, Contender], disk: Path) -> None:
    depth = fio.best_depth(disk, "read", 2 * ROUNDS * REGION_BYTES)
    report.note(f"fio reads at queue depth {depth}, its best of the same.")
    turns: dict[str, Turn] = {
        "ours": lambda region: ours.read(REGIONS + region),
        "fio": lambda region: fio.run(disk, "read", region * REGION_BYTES, REGION_BYTES, depth),
    }
    _report(report, "read", rounds(ROUNDS, turns | {name: peer.read for name, peer in peers.items()}))
    if not drop_caches():
        report.note("The page cache could not be dropped: contenders without O_DIRECT read from memory.")


def _report(report: Report, what: str, seconds: Mapping[str, list[float]]) -> None:
    ratio = paired_ratios(seconds["fio"], seconds["ours"])
    report.add(f"ssd {what}, 1 MiB pages / fio O_DIRECT", ratio.median, spread=ratio.spread)
    for name, title in PEERS.items():
        if name in seconds:
            ratio = paired_ratios(seconds[name], seconds["ours"])
            report.add(f"ssd {what} / {title}", ratio.median, spread=ratio.spread)
    for name, times in seconds.items():
        rate = median_interval([REGION_BYTES / one / 1e9 for one in times])
        report.add(f"{what}: {PEERS.get(name, name)}", rate.median, "GB/s", spread=rate.spread)
