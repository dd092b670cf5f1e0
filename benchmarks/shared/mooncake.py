"""`mooncake` against its client's own batch get of the same objects, from the process's own segment."""

import functools
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.report import Report
from benchmarks.servers import Server, free_port
from benchmarks.stats import median_interval, paired_ratios
from benchmarks.tiers import lanes
from benchmarks.tiers.contender import Turn, rounds
from benchmarks.tiers.data import SPACE, buffer, cut, key
from cache.memory import allocate
from cache.record import HEADER_BYTES, payload_hash
from cache.stores import Settings, address
from cache.stores.mooncake import Mooncake
from cache.stores.mooncake.client import connect
from cache.stores.mooncake.options import Options
from cache.stores.names import name_of, parse
from cache.tiers.lane import Lane

PAGE_BYTES = 1 << 20
RECORD_BYTES = HEADER_BYTES + PAGE_BYTES
PAGES = 256
ROUNDS = 30
TRIALS = 5
CALLS = (1, 2, 4)
"""Batch gets at once: one of all pages, or several that share them."""
CHECKED = "client, then xxh3"
FIGURE = "mooncake batch get, own segment / its client's own batch get"


def measure(report: Report, folder: Path) -> None:
    rpc, admin = free_port(), free_port()
    bind = ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"]
    command = [sys.executable, "-m", "mooncake.cli", *bind, f"--rpc_port={rpc}", f"--metrics_port={admin}"]
    url = f"mooncake://127.0.0.1:{rpc}/bench?segment=1GiB&admin=127.0.0.1:{admin}"
    with Server("mooncake", command, admin):
        _wait(rpc)
        gets = Gets(url)
        trials: dict[str, Turn] = {str(calls): functools.partial(gets.plain, calls) for calls in CALLS}
        tried = rounds(TRIALS, trials, before=_nothing)
        calls = min(CALLS, key=lambda calls: statistics.median(tried[str(calls)]))
        plain = functools.partial(gets.plain, calls)
        turns: dict[str, Turn] = {
            "ours": gets.ours,
            "client": plain,
            CHECKED: functools.partial(gets.checked, plain),
        }
        seconds = rounds(ROUNDS, turns, before=_nothing)
        gets.close()
    ratio = paired_ratios(seconds["client"], seconds["ours"])
    report.add(FIGURE, ratio.median, spread=ratio.spread)
    best = f"{calls} at once, its best of {', '.join(map(str, CALLS))}"
    report.note(f"mooncake: its client alone with {best}, into registered memory, unchecked.")
    bound = paired_ratios(seconds["client"], seconds[CHECKED])
    report.add(f"{FIGURE}, if its check came after it", bound.median, spread=bound.spread)
    for name, times in seconds.items():
        rate = median_interval([PAGES * PAGE_BYTES / one / 1e9 for one in times])
        report.add(f"mooncake: {name}", rate.median, "GB/s", spread=rate.spread)


class Gets:
    """The same objects, got by us, checked, and by Mooncake's client alone, as they are."""

    def __init__(self, url: str) -> None:
        options = Options.parse(address.parse(url))
        self.client = connect(options)
        self.store = Mooncake(self.client, options, Settings(page_bytes=PAGE_BYTES, io_seconds=30.0))
        self.lane = Lane(self.store)
        self.source, self.target = buffer(PAGES, PAGE_BYTES), buffer(PAGES, PAGE_BYTES)
        lanes.write(self.lane, 0, cut(self.source, PAGE_BYTES))
        names = (parse(entry.name) for entry in self.store.shelf.entries())
        generation = next(name.generation for name in names if name)
        self.names = [
            f"{options.prefix}/{name_of(generation, SPACE, key(number))}" for number in range(PAGES)
        ]
        self.records = allocate(PAGES * RECORD_BYTES, prefault=True)
        self.address = np.frombuffer(self.records, np.uint8).ctypes.data
        assert self.client.register_buffer(self.address, self.records.nbytes) == 0

    def ours(self, number: int) -> float:
        self.target[:] = bytes(len(self.target))
        seconds = lanes.read(self.lane, 0, cut(self.target, PAGE_BYTES))
        assert np.array_equal(self.target, self.source)
        return seconds

    def plain(self, calls: int, number: int) -> float:
        """Seconds for the client to get all records into registered memory, unchecked."""
        share = PAGES // calls

        def get(first: int) -> None:
            addresses = [self.address + at * RECORD_BYTES for at in range(first, first + share)]
            got = self.client.batch_get_into(
                self.names[first : first + share], addresses, [RECORD_BYTES] * share
            )
            assert set(got) == {RECORD_BYTES}

        with ThreadPoolExecutor(calls) as pool:
            list(pool.map(time.sleep, [0.01] * calls))  # its threads are there
            begin = time.perf_counter()
            list(pool.map(get, range(0, PAGES, share)))
            return time.perf_counter() - begin

    def checked(self, plain: Turn, number: int) -> float:
        """The same, then a checksum of each page, one after the other: what bounds us on one core."""
        seconds = plain(number)
        begin = time.perf_counter()
        for at in range(PAGES):
            payload_hash([self.records[at * RECORD_BYTES + HEADER_BYTES : (at + 1) * RECORD_BYTES]])
        return seconds + time.perf_counter() - begin

    def close(self) -> None:
        self.lane.close(5.0)
        self.store.close()


def _nothing() -> None:
    """All of it is memory: no disk, no page cache."""


def _wait(port: int) -> None:
    """The master tells its health before it takes clients."""
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
