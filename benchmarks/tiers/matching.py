"""Matches of 1,000 keys, over a hierarchy whose tiers are full of other pages too."""

import time
from pathlib import Path

from benchmarks.report import Report
from benchmarks.stats import median_interval
from benchmarks.tiers.data import BASE, SPACE, buffer, cut, key, page
from cache.hierarchy import Hierarchy
from cache.memory import allocate
from cache.state import Level, Settings
from cache.tiers.base import Tier, Write
from cache.tiers.host import Host
from cache.tiers.ssd import Limits, Ssd

PAGE_BYTES = 4096
PAGES = 20_000
KEYS = 1000
ROUNDS = 300


def measure(report: Report, folder: Path) -> None:
    ssd = Ssd(folder, BASE.fingerprint, PAGE_BYTES, Limits(cap=1 << 30))
    host = Host(allocate(PAGES * PAGE_BYTES), PAGE_BYTES)
    tiers = Hierarchy(Settings(page_tokens=16, page_bytes=PAGE_BYTES), host, [Level(ssd)])
    (content,) = cut(buffer(1, PAGE_BYTES), PAGE_BYTES)
    for first in range(0, PAGES, KEYS):
        pages = [page(number) for number in range(first, first + KEYS)]
        ssd.write(SPACE, [Write(one, [content], 1) for one in pages])
        shifted = [page(number + PAGES) for number in range(first, first + KEYS)]
        assert tiers.store(SPACE, shifted, [[content]] * KEYS) == KEYS
    assert tiers.drain(300), "pages are still being written"
    slowest = 0.0
    for name, first, tier in (
        ("all in host", PAGES, Tier.HOST),
        ("all in ssd", 0, Tier.SSD),
        ("none there", 4 * PAGES, None),
    ):
        times = []
        for number in range(ROUNDS):
            start = first + number * 37 % (PAGES - KEYS)
            keys = [key(at) for at in range(start, start + KEYS)]
            begin = time.perf_counter()
            match = tiers.match(SPACE, keys)
            times.append(time.perf_counter() - begin)
            assert [span.tier for span in match.spans] == ([tier] if tier else [])
        middle = median_interval(times)
        report.add(
            f"match of 1,000 keys, {name}",
            middle.median * 1e3,
            "ms",
            spread=(middle.low * 1e3, middle.high * 1e3),
        )
        slowest = max(slowest, middle.median)
    report.add("keys matched, slowest of the three", KEYS / slowest, "keys/s")
    tiers.close()
