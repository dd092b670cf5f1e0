"""`posix` against plain reads of its own files, and against others' file-system tiers in the same folder.

Everybody writes a region a round, then reads it back, each region once and with dropped caches. Plain reads
get regions of our own files for themselves, as old as those that we read.
"""

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.report import Report
from benchmarks.shared.ours import WIDTHS
from benchmarks.stats import median_interval, paired_ratios
from benchmarks.tiers.contender import REGION_BYTES, Contender, rounds
from benchmarks.tiers.peers import PEERS, start

ROUNDS = 12
TRIALS = 3
NAMES = ("vllm", "lmcache")
BEST = "the best of LMCache fs and vLLM's file-system tier"


def measure(report: Report, folder: Path) -> None:
    ours = Contender("ours", sys.executable, Path(__file__).parent / "ours.py", folder / "ours")
    peers = start(report, folder, NAMES)
    written = rounds(ROUNDS, {"ours": ours.write} | {name: peer.write for name, peer in peers.items()})
    _compare(report, "write", written)
    width = _best_width(ours)
    report.note(
        f"Plain reads of posix's files by {width} threads, the best of {', '.join(map(str, WIDTHS))}."
    )
    for region in range(ROUNDS, 2 * ROUNDS):
        ours.write(region)
    turns = {"ours": ours.read, "plain": lambda region: ours.ask(f"plain{width}", ROUNDS + region)}
    read = rounds(ROUNDS, turns | {name: peer.read for name, peer in peers.items()})
    ratio = paired_ratios(read["plain"], read["ours"])
    report.add("posix read, 1 MiB pages / plain O_DIRECT read", ratio.median, spread=ratio.spread)
    _compare(report, "read", read)
    for contender in (ours, *peers.values()):
        contender.close()


def _best_width(ours: Contender) -> int:
    """The number of threads with the best median rate, interleaved, over regions of their own."""
    first = 2 * ROUNDS
    for region in range(first, first + TRIALS):
        ours.write(region)
    seconds = rounds(
        TRIALS,
        {str(width): lambda trial, width=width: ours.ask(f"plain{width}", first + trial) for width in WIDTHS},
    )
    return min(WIDTHS, key=lambda width: statistics.median(seconds[str(width)]))


def _compare(report: Report, what: str, seconds: Mapping[str, list[float]]) -> None:
    for name, times in seconds.items():
        rate = median_interval([REGION_BYTES / one / 1e9 for one in times])
        report.add(f"posix {what}: {PEERS.get(name, name)}", rate.median, "GB/s", spread=rate.spread)
    peers = [seconds[name] for name in NAMES if name in seconds]
    if len(peers) == len(NAMES):
        best = [min(times) for times in zip(*peers, strict=True)]
        ratio = paired_ratios(best, seconds["ours"])
        report.add(f"posix {what} / {BEST}", ratio.median, spread=ratio.spread)
