"""`python -m benchmarks.eviction`: hit rates by policy and size, as figures and as a plot."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.eviction.optimum import Belady
from benchmarks.eviction.policies import Arc, BlockLru, Cache, Ours, S3Fifo, hits
from benchmarks.eviction.trace import load
from benchmarks.peers import PeerMissing, peer
from benchmarks.report import Report

SHARES = (0.25, 1, 2, 5, 20)
"""Cache sizes, in percent of the trace's unique blocks."""
EARNS = 2.0
"""Points of hit rate that a policy must gain over ours, at three of the sizes, to take its place."""

OURS = "ours"
OTHERS: dict[str, Callable[[int], Cache]] = {
    "LRU by block": BlockLru,
    "S3-FIFO": S3Fifo,
    "ARC": Arc,
}
OPTIMUM = "optimum"
PLOT = Path(__file__).parents[2] / "docs" / "eviction.svg"


def main() -> None:
    report, trace = Report("eviction"), load()
    policies = {OURS: Ours, **OTHERS, OPTIMUM: lambda capacity: Belady(capacity, trace.requests)}
    blocks, unique = trace.blocks, trace.unique
    rates = {name: [] for name in policies}
    for share in SHARES:
        capacity = round(unique * share / 100)
        for name, cache in policies.items():
            rate = 100 * hits(cache(capacity), trace.requests) / blocks
            rates[name].append(rate)
            report.add(f"{name}, {share} % = {capacity:,} blocks", rate, "%")
    report.add("a cache without limits", 100 * hits(BlockLru(unique), trace.requests) / blocks, "%")
    for name in OTHERS:
        gains = [theirs - mine for theirs, mine in zip(rates[name], rates[OURS], strict=True)]
        report.add(f"{name}: sizes where it gains {EARNS:g} points over ours", sum(g >= EARNS for g in gains))
    report.note(
        f"{len(trace.requests):,} requests, {blocks:,} blocks of 512 tokens, {unique:,} of them unique."
    )
    report.note(
        "A request's hits are its leading run of present blocks; a request stores all that it missed."
    )
    _plot(report, rates)
    sys.exit(report.finish())


def _plot(report: Report, rates: dict[str, list[float]]) -> None:
    data = json.dumps({"shares": SHARES, "rates": rates})
    try:
        python = peer("matplotlib") / "python"
    except PeerMissing as missing:
        report.note(f"{PLOT.name} was not drawn: {missing}")
        return
    subprocess.run([python, Path(__file__).with_name("plot.py"), PLOT], input=data, text=True, check=True)


if __name__ == "__main__":
    main()
