"""Contender: our `posix` store. "plain4" reads a region of its files by four threads and nothing else."""

import functools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.tiers import lanes
from benchmarks.tiers.contender import PAGE_BYTES, PAGES, serve
from benchmarks.tiers.data import SPACE, buffer, cut, key
from cache.memory import allocate
from cache.record import HEADER_BYTES
from cache.stores import Settings
from cache.stores.names import name_of, parse
from cache.stores.posix import Posix
from cache.tiers.lane import Lane

WIDTHS = (2, 4, 8, 16)


class Ours:
    def __init__(self, folder: Path) -> None:
        self.store = Posix(folder / "store", Settings(page_bytes=PAGE_BYTES))
        self.lane = Lane(self.store)
        self.source, self.target = buffer(PAGES, PAGE_BYTES), buffer(PAGES, PAGE_BYTES)
        self.headers = cut(allocate(PAGES * HEADER_BYTES, prefault=True), HEADER_BYTES)

    def write(self, region: int) -> float:
        return lanes.write(self.lane, region * PAGES, cut(self.source, PAGE_BYTES))

    def read(self, region: int) -> float:
        self.target[:] = bytes(len(self.target))
        seconds = lanes.read(self.lane, region * PAGES, cut(self.target, PAGE_BYTES))
        assert np.array_equal(self.target, self.source)
        return seconds

    def plain(self, width: int, region: int) -> float:
        """Seconds to open, read with O_DIRECT, and close a region's files."""
        names = (parse(entry.name) for entry in self.store.shelf.entries())
        generation = next(name.generation for name in names if name)
        files = [name_of(generation, SPACE, key(region * PAGES + at)) for at in range(PAGES)]
        parts = cut(self.target, PAGE_BYTES)

        def read(at: int) -> None:
            fd = os.open(f"{self.store.shelf.where}/{files[at]}", os.O_RDONLY | os.O_DIRECT)
            assert os.preadv(fd, [self.headers[at], parts[at]], 0) == HEADER_BYTES + PAGE_BYTES
            os.close(fd)

        with ThreadPoolExecutor(width) as pool:
            list(pool.map(time.sleep, [0.01] * width))  # its threads are there
            begin = time.perf_counter()
            list(pool.map(read, range(PAGES)))
            return time.perf_counter() - begin


if __name__ == "__main__":
    ours = Ours(Path(sys.argv[1]))
    plain = {f"plain{width}": functools.partial(ours.plain, width) for width in WIDTHS}
    serve(ours.write, ours.read, **plain)
