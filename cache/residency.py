"""Who lies where, for whoever listens: each change once, in order, under a sequence number."""

import threading
from collections import deque
from typing import NamedTuple

from cache.tiers.base import Change, Known


class Told(NamedTuple):
    """A change and its place in the order."""

    sequence: int
    change: Change


class Drained(NamedTuple):
    """What a listener missed since it asked last."""

    changes: list[Told]
    lost: bool
    """Some changes were thrown away before they were read: take a snapshot."""


class Snapshot(NamedTuple):
    """Residency of one tier: changes up to `sequence` are in it.

    Later ones may be in it too; applying them again gives the same.
    """

    sequence: int
    known: Known


class Listener:
    """A bounded queue of changes. Made by `Residency.listen`."""

    def __init__(self, limit: int) -> None:
        self._queue: deque[Told] = deque()
        self._limit = limit
        self._lost = False
        self._lock = threading.Lock()

    def put(self, told: Told) -> None:
        """Queue a change, or note that it is lost."""
        with self._lock:
            if len(self._queue) >= self._limit:
                self._lost = True
            else:
                self._queue.append(told)

    def drain(self) -> Drained:
        """Take what is queued; doesn't block."""
        with self._lock:
            drained = Drained(list(self._queue), self._lost)
            self._queue.clear()
            self._lost = False
        return drained


class Residency:
    """Numbers the changes of all tiers and hands them to the listeners."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._sequence = 0

    @property
    def sequence(self) -> int:
        """The number of the latest change."""
        return self._sequence

    def record(self, change: Change) -> None:
        """Take a change; called by the tiers under their own locks, so that the order is theirs."""
        with self._lock:
            self._sequence += 1
            told = Told(self._sequence, change)
            for listener in self._listeners:
                listener.put(told)

    def listen(self, limit: int = 65536) -> Listener:
        """A new listener, which gets every change from now on, at most `limit` unread ones."""
        listener = Listener(limit)
        with self._lock:
            self._listeners.append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Stop telling a listener; more than once is harmless."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one is not listener]
