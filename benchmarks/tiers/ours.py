"""Contender: our `ssd` through its lane, as the hierarchy uses it. Checks are on."""

import sys
from pathlib import Path

import numpy as np

from benchmarks.tiers import lanes
from benchmarks.tiers.contender import PAGE_BYTES, PAGES, REGIONS, serve
from benchmarks.tiers.data import BASE, buffer, cut
from cache.tiers.lane import Lane
from cache.tiers.ssd import Limits, Ssd
from cache.tiers.ssd.records import slot_bytes

SLOTS = REGIONS * PAGES + 64
CAP = SLOTS * (slot_bytes(PAGE_BYTES) + 256)


class Ours:
    def __init__(self, folder: Path) -> None:
        self.lane = Lane(Ssd(folder / "ssd", BASE.fingerprint, PAGE_BYTES, Limits(cap=CAP)))
        self.source, self.target = buffer(PAGES, PAGE_BYTES), buffer(PAGES, PAGE_BYTES)

    def write(self, region: int) -> float:
        return lanes.write(self.lane, region * PAGES, cut(self.source, PAGE_BYTES), used=region + 1)

    def read(self, region: int) -> float:
        self.target[:] = bytes(len(self.target))
        seconds = lanes.read(self.lane, region * PAGES, cut(self.target, PAGE_BYTES))
        assert np.array_equal(self.target, self.source)
        return seconds


if __name__ == "__main__":
    ours = Ours(Path(sys.argv[1]))
    serve(ours.write, ours.read)
