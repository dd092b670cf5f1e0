"""`host`: what a page's way in and out costs beside the copy itself."""

import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import Report
from benchmarks.stats import paired_ratios
from benchmarks.tiers.data import SPACE, buffer, cut, page
from cache.economics import Priors
from cache.hierarchy import Hierarchy
from cache.memory import copy
from cache.record import payload_hash
from cache.state import Settings
from cache.tiers.base import Tier
from cache.tiers.host import Host

PAGE_BYTES = 1 << 20
PAGES = 256
ROUNDS = 15


def measure(report: Report) -> None:
    memory, inside, outside = (buffer(PAGES, PAGE_BYTES) for _ in range(3))
    host = Host(inside, PAGE_BYTES)
    settings = Settings(page_tokens=16, page_bytes=PAGE_BYTES, threshold=0, priors=Priors(1.0))
    tiers = Hierarchy(settings, host)
    source, target, plain = cut(memory, PAGE_BYTES), cut(outside, PAGE_BYTES), cut(inside, PAGE_BYTES)
    pages = [page(number) for number in range(PAGES)]
    keys = [one.key for one in pages]

    def copy_in() -> None:
        assert tiers.store(SPACE, pages, [[part] for part in source]) == PAGES

    def copy_out() -> None:
        plan = tiers.plan(tiers.match(SPACE, keys))
        ticket = tiers.load(plan, pages)
        assert ticket.progress().ready == PAGES
        for slot, part in zip(tiers.slots(SPACE, keys), target, strict=True):
            copy(host.page(slot), part)
        ticket.release()

    def copy_in_checked() -> None:
        copy_in()
        for part in source:
            payload_hash([part])

    def memcpy_in() -> None:
        for part, into in zip(source, plain, strict=True):
            np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(part, np.uint8))

    def memcpy_out() -> None:
        for part, into in zip(plain, target, strict=True):
            np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(part, np.uint8))

    seconds: dict[Callable[[], None], list[float]] = {
        run: [] for run in (copy_in, memcpy_in, copy_in_checked, copy_out, memcpy_out)
    }
    for _ in range(ROUNDS + 2):
        for run, times in seconds.items():
            if run in (copy_in, copy_in_checked):
                tiers.clear(Tier.HOST)
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
    tiers.clear(Tier.HOST)
    copy_in()
    copy_out()
    assert outside == memory, "the pages that came out aren't those that went in"
    tiers.close()
    seconds = {run: times[2:] for run, times in seconds.items()}
    for name, ours, theirs in (
        ("host: page copy in / plain memcpy", copy_in, memcpy_in),
        ("host: page copy out / plain memcpy", copy_out, memcpy_out),
        ("host: page copy in with checksum / plain memcpy", copy_in_checked, memcpy_in),
    ):
        ratio = paired_ratios(seconds[theirs], seconds[ours])
        report.add(name, ratio.median, spread=ratio.spread)
    rate = PAGES * PAGE_BYTES / float(np.median(seconds[memcpy_in])) / 1e9
    report.add("plain memcpy, 1 MiB pages", rate, "GB/s")
