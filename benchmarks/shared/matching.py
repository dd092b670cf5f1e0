"""Matches of 1,000 keys on `posix`, through the hierarchy, with an empty memory of look-ups each time."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Report
from benchmarks.stats import median_interval
from benchmarks.tiers.data import SPACE, buffer, drop_caches, key, page
from cache.hierarchy import Hierarchy
from cache.memory import allocate
from cache.state import Level
from cache.state import Settings as TierSettings
from cache.stores import Settings
from cache.stores.posix import Posix
from cache.tiers.base import Outcome, Write
from cache.tiers.host import Host

PAGE_BYTES = 4096
PAGES = 20_000
KEYS = 1000
ROUNDS = 100
COLD_ROUNDS = 10
TIERS = TierSettings(page_tokens=16, page_bytes=PAGE_BYTES)


def measure(report: Report, folder: Path) -> None:
    filler = Posix(folder, Settings(page_bytes=PAGE_BYTES))
    content = buffer(1, PAGE_BYTES)
    for number in range(PAGES):
        assert filler.write(SPACE, [Write(page(number), [content])]) == [Outcome.DONE]
    filler.close()
    seconds: list[float] = []
    late = 0
    for name, first, there, prepare, rounds in (
        ("match of 1,000 keys on posix, kernel caches warm", 0, KEYS, _nothing, ROUNDS),
        ("match of 1,000 keys on posix, half of them there", PAGES - KEYS // 2, KEYS // 2, _nothing, ROUNDS),
        ("match of 1,000 keys on posix, none there", 4 * PAGES, 0, _nothing, ROUNDS),
        ("match of 1,000 keys on posix, kernel caches cold", 0, KEYS, drop_caches, COLD_ROUNDS),
    ):
        looks = [_match(folder, first, prepare) for _ in range(rounds)]
        late += sum(look.pages != there for look in looks)
        middle = median_interval([look.seconds * 1e3 for look in looks])
        report.add(name, middle.median, "ms", spread=middle.spread)
        seconds += [look.seconds for look in looks]
    report.add("slowest match of 1,000 keys on posix", max(seconds) * 1e3, "ms")
    report.add("deadline of a match", TIERS.look_seconds * 1e3, "ms")
    report.note(f"{late} of {len(seconds)} matches on posix ended at their deadline, with nothing found.")


class Look(NamedTuple):
    seconds: float
    pages: int


def _match(folder: Path, first: int, prepare: Callable[[], object]) -> Look:
    """One match by an engine that has just started."""
    host = Host(allocate(PAGE_BYTES), PAGE_BYTES)
    tiers = Hierarchy(TIERS, host, [Level(Posix(folder, Settings(page_bytes=PAGE_BYTES)))])
    prepare()
    keys = [key(number) for number in range(first, first + KEYS)]
    begin = time.perf_counter()
    match = tiers.match(SPACE, keys)
    seconds = time.perf_counter() - begin
    tiers.close()
    return Look(seconds, match.pages)


def _nothing() -> None:
    """Leave the caches as they are."""
