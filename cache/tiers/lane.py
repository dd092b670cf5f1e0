"""A lane: the threads around one store, so that nobody who waits for it holds up anybody else."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cache.errors import SettingsError
from cache.keys import Namespace
from cache.tiers.base import Outcome, Read, Store, Write

logger = logging.getLogger(__name__)

_WAITING_LOOKS = 8
_TEND_SECONDS = 1.0


class Result(NamedTuple):
    """How one page's read or write ended."""

    outcome: Outcome
    seconds: float
    """Time of the call divided by its pages."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One page to read or to write."""

    namespace: Namespace
    request: Read | Write
    start: Callable[[], bool]
    """Called when its turn comes, on a thread of the lane; False: forget the job."""
    done: Callable[[Result], None]
    """Called once for a started job, on the same thread."""


@dataclass(frozen=True, slots=True)
class Width:
    """How many threads a lane has, and how many writes may wait for them.

    An idle disk takes about four at a time; the rest bridge the moments in which a busy machine lets a thread
    wait for a core.
    """

    readers: int = 16
    writers: int = 16
    waiting_writes: int = 65536

    def __post_init__(self) -> None:
        if min(self.readers, self.writers, self.waiting_writes) < 1:
            raise SettingsError(f"a lane needs at least one reader, writer and waiting write, not {self}")


class Lane:
    """Reads, writes and remote look-ups of one store, each on threads of their own."""

    def __init__(self, store: Store, width: Width | None = None) -> None:
        self.store = store
        self.width = width or Width()
        name = f"hpkv-{store.tier.value}"
        self._reads = _Workers(f"{name}-read", self.width.readers, store.batch, self._read)
        self._writes = _Workers(f"{name}-write", self.width.writers, store.batch, self._write)
        self._looks = _Workers(f"{name}-look", 2, 1, _look) if store.remote else None
        self._ended = threading.Event()
        self._upkeep = threading.Thread(target=self._tend, name=f"{name}-tend", daemon=True)
        self._upkeep.start()

    @property
    def backlog(self) -> int:
        """Pages whose reads wait or run."""
        return self._reads.backlog

    def load(self, jobs: Sequence[Job], urgent: bool = True) -> None:
        """Queue reads, before all that aren't urgent."""
        self._reads.push(jobs, urgent)

    def save(self, job: Job) -> bool:
        """Queue a write; False when too many wait: it is dropped, and `done` isn't called."""
        if self._writes.backlog >= self.width.waiting_writes:
            return False
        self._writes.push([job])
        return True

    def look(
        self, namespace: Namespace, keys: Sequence[bytes], done: Callable[[Sequence[bool]], None]
    ) -> bool:
        """Ask a remote store what it has; `done` is called on a thread of the lane.

        False when so many look-ups wait that the store must be hanging: `done` isn't called.
        """
        assert self._looks is not None, "only remote stores are looked up on a thread"
        if self._looks.backlog >= _WAITING_LOOKS:
            return False
        self._looks.push([_Look(self.store, namespace, keys, done)])
        return True

    @property
    def idle(self) -> bool:
        """Whether no read and no write waits or runs."""
        return not self._reads.backlog and not self._writes.backlog

    def close(self, timeout: float) -> bool:
        """Stop the threads.

        What waits is dropped. False when one still hangs in the store after `timeout` s.
        """
        self._ended.set()
        workers = [group for group in (self._reads, self._writes, self._looks) if group is not None]
        for group in workers:
            group.stop()
        deadline = time.monotonic() + timeout
        self._upkeep.join(timeout)
        stopped = [group.join(deadline) for group in workers]
        return all(stopped) and not self._upkeep.is_alive()

    def _tend(self) -> None:
        while not self._ended.wait(_TEND_SECONDS):
            try:
                self.store.tend()
            except Exception:
                logger.exception("%s: a store must not raise here; upkeep goes on", self.store.tier.value)

    def _read(self, jobs: "list[Job]") -> None:
        self._run(jobs, self.store.read)

    def _write(self, jobs: "list[Job]") -> None:
        self._run(jobs, self.store.write)

    def _run(self, jobs: list[Job], call: Callable[[Namespace, list[Any]], Sequence[Outcome]]) -> None:
        started = [job for job in jobs if job.start()]
        if not started:
            return
        begin = time.perf_counter()
        try:
            outcomes = call(started[0].namespace, [job.request for job in started])
        except Exception:
            logger.exception("%s: a store must not raise; its pages count as failed", self.store.tier.value)
            outcomes = [Outcome.FAILED] * len(started)
        seconds = (time.perf_counter() - begin) / len(started)
        for job, outcome in zip(started, outcomes, strict=True):
            job.done(Result(outcome, seconds))


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    store: Store
    namespace: Namespace
    keys: Sequence[bytes]
    done: Callable[[Sequence[bool]], None]


def _look(looks: "list[_Look]") -> None:
    for look in looks:
        try:
            found = look.store.find(look.namespace, look.keys)
        except Exception:
            logger.exception("%s: a store must not raise here; nothing was found", look.store.tier.value)
            found = [False] * len(look.keys)
        look.done(found)


class _Workers:
    """Threads over a queue in two classes."""

    def __init__(self, name: str, count: int, batch: int, run: Callable[..., None]) -> None:
        self._batch = batch
        self._run = run
        self._urgent: deque[Job | _Look] = deque()
        self._later: deque[Job | _Look] = deque()
        self._running = 0
        self._stopped = False
        self._turn = threading.Condition()
        self._threads = [
            threading.Thread(target=self._loop, name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def backlog(self) -> int:
        return len(self._urgent) + len(self._later) + self._running

    def push(self, jobs: Sequence[Job | _Look], urgent: bool = True) -> None:
        with self._turn:
            (self._urgent if urgent else self._later).extend(jobs)
            self._turn.notify(len(jobs))

    def stop(self) -> None:
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def join(self, deadline: float) -> bool:
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _loop(self) -> None:
        while jobs := self._next():
            self._run(jobs)
            with self._turn:
                self._running -= len(jobs)

    def _next(self) -> list[Job | _Look]:
        """The next jobs of one namespace; empty when it is time to stop."""
        with self._turn:
            self._turn.wait_for(lambda: self._stopped or self._urgent or self._later)
            queue = deque[Job | _Look]() if self._stopped else self._urgent or self._later
            jobs = [queue.popleft()] if queue else []
            while queue and len(jobs) < self._batch and queue[0].namespace == jobs[0].namespace:
                jobs.append(queue.popleft())
            self._running += len(jobs)
            return jobs
