"""`ssd` against fio on the same disk, and against others' file-system tiers.

Our tier is full when its writes are timed, as a tier is most of its life: each page that it writes evicts
another and takes its slot. fio overwrites a file likewise; the others make new files, since theirs has no
bound. All write in turns; then all read back in turns, each region once and with dropped caches, so that what
is read is at rest and equally old. fio reads regions of our own file that we don't read.
"""

import os
import sys
from pathlib import Path

from benchmarks.report import Report
from benchmarks.stats import median_interval, paired_ratios
from benchmarks.tiers import fio
from benchmarks.tiers.contender import PAGE_BYTES, REGION_BYTES, REGIONS, ROUNDS, Contender
from benchmarks.tiers.data import drop_caches
from benchmarks.tiers.peers import PEERS, start
from cache.tiers.ssd.records import slot_bytes

OUR_REGION_BYTES = REGION_BYTES // PAGE_BYTES * slot_bytes(PAGE_BYTES)


def measure(report: Report, folder: Path) -> None:
    ours = Contender("ours", sys.executable, Path(__file__).parent / "ours.py", folder / "ours")
    peers = start(report, folder)
    plain = folder / "fio.dat"
    with plain.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, REGIONS * REGION_BYTES)
    writes: dict[str, list[float]] = {name: [] for name in ("ours", "fio", *peers)}
    reads: dict[str, list[float]] = {name: [] for name in writes}
    fresh: dict[str, list[float]] = {"ours": [], "fio": []}
    for number in range(REGIONS):
        fresh["ours"].append(ours.write(number))
        fresh["fio"].append(fio.run(plain, "write", number * REGION_BYTES, REGION_BYTES, 8))
    depth = fio.best_depth(plain, "write", 2 * ROUNDS * REGION_BYTES)
    report.note(f"fio writes at queue depth {depth}, its best of {', '.join(map(str, fio.DEPTHS))}.")
    for number in range(ROUNDS):
        writes["ours"].append(ours.write(REGIONS + number))
        writes["fio"].append(fio.run(plain, "write", number * REGION_BYTES, REGION_BYTES, depth))
        for name, contender in peers.items():
            writes[name].append(contender.write(number))
    (slots,) = (folder / "ours" / "ssd").glob("*/pages")
    if not drop_caches():
        report.note("The page cache could not be dropped: contenders without O_DIRECT read from memory.")
    depth = fio.best_depth(slots, "read", 2 * ROUNDS * OUR_REGION_BYTES)
    report.note(f"fio reads at queue depth {depth}, its best of the same.")
    for number in range(ROUNDS):
        drop_caches()
        reads["ours"].append(ours.read(REGIONS + number))
        drop_caches()
        at = (ROUNDS + number) * OUR_REGION_BYTES
        reads["fio"].append(fio.run(slots, "read", at, OUR_REGION_BYTES >> 20 << 20, depth))
        for name, contender in peers.items():
            drop_caches()
            reads[name].append(contender.read(number))
    for contender in (ours, *peers.values()):
        contender.close()
    _report(report, writes, reads)
    ratio = paired_ratios(fresh["fio"], fresh["ours"])
    report.add("ssd write into new space / fio O_DIRECT", ratio.median, spread=ratio.spread)


def _report(report: Report, writes: dict[str, list[float]], reads: dict[str, list[float]]) -> None:
    for what, seconds in (("read", reads), ("write", writes)):
        ratio = paired_ratios(seconds["fio"], seconds["ours"])
        report.add(f"ssd {what}, 1 MiB pages / fio O_DIRECT", ratio.median, spread=ratio.spread)
        for name, title in PEERS.items():
            if name in seconds:
                ratio = paired_ratios(seconds[name], seconds["ours"])
                report.add(f"ssd {what} / {title}", ratio.median, spread=ratio.spread)
        for name, times in seconds.items():
            rate = median_interval([REGION_BYTES / one / 1e9 for one in times])
            report.add(f"{what}: {PEERS.get(name, name)}", rate.median, "GB/s", spread=rate.spread)
