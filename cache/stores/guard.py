"""Keeps a store that hangs or fails from holding up those who use it.

A thread inside a call to a hanging mount can't be called back: so only so many are let in at once, and once
one of them is overdue nobody is let in any more, until it comes back. A store that fails several times in a
row is left alone for a while, longer each time.
"""

import enum
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

FAULTS = 3
"""So many in a row, and the store is left alone."""
PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


class Unavailable(Exception):
    """The store is out of reach; nothing was tried."""


class Call(enum.Enum):
    """What a call does."""

    LOOK = "look"
    READ = "read"
    WRITE = "write"
    TEND = "tend"


class Guard:
    """One store's health, as all threads that use it see it."""

    def __init__(
        self, where: str, seconds: float, at_once: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """So many reads, and writes, are let in at once; a call that takes longer than `seconds` hangs."""
        self._where = where
        self._seconds = seconds
        self._now = clock
        self._permits = {kind: threading.BoundedSemaphore(at_once) for kind in (Call.READ, Call.WRITE)}
        self._running: dict[int, float] = {}
        self._tokens = itertools.count()
        self._faults = 0
        self._closed_until = 0.0
        self._answered = True
        self._closed = False
        self._lock = threading.Lock()

    @property
    def available(self) -> bool:
        """Whether the store may be asked now."""
        now = self._now()
        with self._lock:
            available = not self._overdue() and now >= self._closed_until
            if available < self._answered:
                logger.warning("%s is out of reach: all is a miss until it answers again", self._where)
                self._answered = False
        return available

    @contextmanager
    def call(self, kind: Call) -> Iterator[None]:
        """Around each call into the store. Raises Unavailable, but for upkeep: that finds out."""
        if kind is not Call.TEND and not self.available:
            raise Unavailable
        permits = self._permits.get(kind)
        if permits is not None and not permits.acquire(timeout=self._seconds):
            raise Unavailable
        try:
            with self._lock:
                if self._closed:
                    raise Unavailable
                token = next(self._tokens)
                self._running[token] = self._now()
            try:
                yield
            finally:
                with self._lock:
                    del self._running[token]
        finally:
            if permits is not None:
                permits.release()

    def close(self, seconds: float) -> bool:
        """Let nobody in any more; False if somebody is still inside after so many seconds."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self._closed = True
        while self._running:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def fine(self) -> None:
        """The store has answered."""
        if self._faults or not self._answered:
            with self._lock:
                self._faults, self._closed_until = 0, 0.0
                if self._overdue():
                    return
                if not self._answered:
                    logger.warning("%s answers again", self._where)
                self._answered = True

    def fault(self, count: int = 1) -> None:
        """The store has failed; `FAULTS` at once say that it isn't there."""
        with self._lock:
            self._faults += count
            if self._faults >= FAULTS:
                pause = PAUSE_SECONDS * 2.0 ** min(self._faults - FAULTS, 10)
                self._closed_until = self._now() + min(pause, LONGEST_PAUSE_SECONDS)

    def _overdue(self) -> bool:
        """Whether the oldest call hangs."""
        return bool(self._running) and self._now() - next(iter(self._running.values())) > self._seconds
