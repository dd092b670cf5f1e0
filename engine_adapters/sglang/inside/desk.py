"""Prefetches on their way from the agent's thread to the scheduler's, and back.

Only the scheduler may ask SGLang for a prefetch, and with several ranks all of them must, in the same order.
So the agent of the first rank leaves its orders here; the scheduler there takes them in with its requests,
which SGLang sends to all ranks.
"""

import contextlib
import itertools
import os
import threading
from array import array
from dataclasses import dataclass

import zmq

from cache.tickets import Phase, Progress


@dataclass(frozen=True, slots=True)
class Fetch:
    """An order: bring a prompt's pages from storage into SGLang's host memory, and keep them there."""

    number: int
    tokens: "array[int]"
    salt: str | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Another: let them go."""

    number: int


class Coming:
    """A prefetch as the agent sees it; as `engine_adapters.agent.base.Loading` says."""

    def __init__(self, desk: "Desk", number: int, pages: int) -> None:
        self._desk = desk
        self._number = number
        self._pages = pages
        self.phase = Phase.RUNNING
        self.ready = 0

    def __len__(self) -> int:
        return self._pages

    def progress(self) -> Progress:
        """Where it stands."""
        return Progress(self.phase, self.ready, settled=True)

    def extend(self, seconds: float) -> None:
        """Nothing: it is kept until it is dropped."""

    def cancel(self) -> None:
        """Let the pages go."""
        if self.phase is Phase.RUNNING:
            self.phase = Phase.CANCELLED
        self._desk.drop(self._number)


class Desk:
    """Where one thread leaves orders and the other takes them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._left: list[Fetch | Drop] = []
        self._coming: dict[int, Coming] = {}
        self._sleeper: zmq.Poller | None = None
        self._open = True
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while there is something to take."""

    def fetch(self, tokens: "array[int]", salt: str | None, pages: int) -> Coming:
        """Order a prefetch of `pages` pages that storage has."""
        number = next(self._numbers)
        coming = Coming(self, number, pages)
        with self._lock:
            self._coming[number] = coming
            self._leave(Fetch(number, tokens, salt))
        return coming

    def drop(self, number: int) -> None:
        """Order that its pages be let go; once is enough."""
        with self._lock:
            if self._coming.pop(number, None) is not None:
                self._leave(Drop(number))

    def rouse(self, sleeper: zmq.Poller) -> None:
        """Let orders wake a scheduler that sleeps in this poller; once is enough."""
        if self._sleeper is None:
            self._sleeper = sleeper
            sleeper.register(self.wake, zmq.POLLIN)

    def take(self) -> list[Fetch | Drop]:
        """What was ordered since the last call."""
        if not self._left:
            return []
        with self._lock:
            taken, self._left = self._left, []
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.wake)
        return taken

    def tell(self, number: int, ready: int, phase: Phase) -> None:
        """How far one is. What was there and is lost again is told as CANCELLED."""
        coming = self._coming.get(number)
        if coming is not None and (coming.phase is Phase.RUNNING or phase is Phase.CANCELLED):
            coming.ready, coming.phase = ready, phase

    def close(self) -> None:
        """Take no more. Called by who sleeps: the poller must not keep a descriptor that others get next."""
        with self._lock:
            self._open = False
            if self._sleeper is not None:
                self._sleeper.unregister(self.wake)
            os.close(self.wake)

    def _leave(self, order: Fetch | Drop) -> None:
        """With the lock held. An agent that hangs may still order something after the end."""
        if self._open:
            self._left.append(order)
            os.eventfd_write(self.wake, 1)
