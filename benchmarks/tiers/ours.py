"""Contender: our `ssd` through its lane, as the hierarchy uses it. Checks are on."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.tiers.contender import PAGE_BYTES, PAGES, REGIONS, serve
from benchmarks.tiers.data import BASE, SPACE, buffer, cut, key, page
from cache.tiers.base import Outcome, Read, Write
from cache.tiers.lane import Job, Lane, Result
from cache.tiers.ssd import Limits, Ssd
from cache.tiers.ssd.records import slot_bytes

SLOTS = REGIONS * PAGES + 64
CAP = SLOTS * (slot_bytes(PAGE_BYTES) + 256)


class Ours:
    def __init__(self, folder: Path) -> None:
        self.lane = Lane(Ssd(folder / "ssd", BASE.fingerprint, PAGE_BYTES, Limits(cap=CAP)))
        self.source, self.target = buffer(PAGES, PAGE_BYTES), buffer(PAGES, PAGE_BYTES)

    def write(self, region: int) -> float:
        def job(number: int, part: memoryview, done: Callable[[Result], None]) -> Job:
            return Job(SPACE, Write(page(number), [part], region + 1), lambda: True, done)

        return self._run(region, cut(self.source, PAGE_BYTES), job, self.lane.save)

    def read(self, region: int) -> float:
        def job(number: int, part: memoryview, done: Callable[[Result], None]) -> Job:
            return Job(SPACE, Read(key(number), [part]), lambda: True, done)

        self.target[:] = bytes(len(self.target))
        seconds = self._run(region, cut(self.target, PAGE_BYTES), job, lambda one: self.lane.load([one]))
        assert np.array_equal(self.target, self.source)
        return seconds

    def _run(
        self,
        region: int,
        parts: list[memoryview],
        job: Callable[[int, memoryview, Callable[[Result], None]], Job],
        queue: Callable[[Job], object],
    ) -> float:
        results, over = list[Result](), threading.Event()

        def done(result: Result) -> None:
            results.append(result)
            if len(results) == PAGES:
                over.set()

        jobs = [job(region * PAGES + index, part, done) for index, part in enumerate(parts)]
        begin = time.perf_counter()
        for one in jobs:
            queue(one)
        over.wait()
        seconds = time.perf_counter() - begin
        assert {result.outcome for result in results} == {Outcome.DONE}
        return seconds


if __name__ == "__main__":
    ours = Ours(Path(sys.argv[1]))
    serve(ours.write, ours.read)
