"""Pages through a store's lane, as the hierarchy uses it. Checks are on."""

import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.tiers.data import SPACE, key, page
from cache.tiers.base import Outcome, Read, Write
from cache.tiers.lane import Job, Lane, Result


def write(lane: Lane, first: int, parts: Sequence[memoryview], used: int = 1) -> float:
    """Seconds to write pages `first` and on."""
    wanted = [Write(page(first + at), [part], used) for at, part in enumerate(parts)]
    return _run(wanted, lambda jobs: [lane.save(job) for job in jobs])


def read(lane: Lane, first: int, parts: Sequence[memoryview]) -> float:
    """Seconds to read them back into the parts."""
    return _run([Read(key(first + at), [part]) for at, part in enumerate(parts)], lane.load)


def _run(requests: Sequence[Read | Write], queue: Callable[[list[Job]], object]) -> float:
    results, over = list[Result](), threading.Event()

    def done(result: Result) -> None:
        results.append(result)
        if len(results) == len(requests):
            over.set()

    jobs = [Job(SPACE, request, lambda: True, done) for request in requests]
    begin = time.perf_counter()
    queue(jobs)
    over.wait()
    seconds = time.perf_counter() - begin
    assert {result.outcome for result in results} == {Outcome.DONE}
    return seconds
