"""Tickets: what was asked for and hasn't ended. The owner polls; nobody waits inside."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cache.leases import Lease

if TYPE_CHECKING:
    from cache.state import State


class Phase(enum.Enum):
    """Where a ticket stands."""

    RUNNING = "running"
    DONE = "done"
    """Every page ended, well or not."""
    EXPIRED = "expired"
    """The deadline passed before that; pages that arrive later stay in `host` for others."""
    CANCELLED = "cancelled"


class Progress(NamedTuple):
    """A ticket at one moment."""

    phase: Phase
    ready: int
    """Leading pages that are there, and stay until the ticket is released or its lease ends."""
    settled: bool
    """No thread touches the ticket's buffers any more. While it is False, buffers that the caller gave must
    not be used for anything else, whatever the phase: a read under way can't be taken back."""


class Ticket:
    """Some pages on their way. Its methods don't block."""

    def __init__(self, state: State, pages: int, deadline: float, lease: Lease) -> None:
        self._state = state
        self._good = [False] * pages
        self._open = pages
        self._phase = Phase.RUNNING if pages else Phase.DONE
        self.deadline = deadline
        self.lease = lease
        self.leased = state.host is not None
        """Whether the pages lie in `host`, where only the lease keeps them."""
        if pages:
            state.tickets.add(self)
        self.drop: list[Callable[[Ticket], bool]] = []
        """Called when the ticket ends early, once for each page under way; True: it won't be tried."""

    def __len__(self) -> int:
        """Pages asked for."""
        return len(self._good)

    def progress(self) -> Progress:
        """Where it stands now."""
        with self._state.lock:
            self.expire(self._state.now())
            return Progress(self._phase, self.ready(), self._open == 0)

    def cancel(self) -> None:
        """Stop what can be stopped and let the pages go. After the ticket has ended this is `release`."""
        with self._state.lock:
            self._end(Phase.CANCELLED)
            self._state.leases.release(self.lease)

    release = cancel

    def extend(self, seconds: float) -> None:
        """Let it go on, and keep its pages, for `seconds` from now if that is longer than so far."""
        with self._state.lock:
            until = self._state.now() + seconds
            self.deadline = max(self.deadline, until)
            self._state.leases.extend(self.lease, until)

    def wait(self, seconds: float | None = None) -> Progress:
        """Poll until it has ended and settled, or `seconds` are over.

        For tools and tests, not for schedulers.
        """
        limit = None if seconds is None else time.monotonic() + seconds
        while True:
            now = self.progress()
            if (now.phase is not Phase.RUNNING and now.settled) or (limit and time.monotonic() > limit):
                return now
            time.sleep(0.0005)

    # The rest is called with the lock held.

    def ready(self) -> int:
        """Leading pages that are there and leased."""
        if self.leased and (self.lease.cleared or not self._state.leases.holds(self.lease)):
            return 0
        return self._good.index(False) if False in self._good else len(self._good)

    def settle(self, index: int, good: bool) -> None:
        """A page has ended."""
        self._open -= 1
        self._good[index] = good
        if not self._open and self._phase is Phase.RUNNING:
            self._phase = Phase.DONE
            self.drop.clear()
            self._state.tickets.discard(self)

    def expire(self, now: float) -> bool:
        """End it if its deadline has passed; True if that happened now."""
        if self._phase is Phase.RUNNING and not now < self.deadline:
            self._end(Phase.EXPIRED)
            return True
        return False

    @property
    def expired(self) -> bool:
        """Whether its deadline ended it."""
        return self._phase is Phase.EXPIRED

    def _end(self, phase: Phase) -> None:
        if self._phase is not Phase.RUNNING:
            return
        self._phase = phase
        self._state.tickets.discard(self)
        drops, self.drop = self.drop, []
        self._open -= sum(drop(self) for drop in drops)
