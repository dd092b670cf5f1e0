"""Memory between SGLang's host pages and a store that may hang.

A store's read or write can't be taken back once it has begun, and SGLang gives a host page to somebody else
as soon as our call returns. So what a remote store moves lies here, and stays ours until the store lets go.
"""

from collections.abc import Sequence

from cache.memory import allocate, padded
from cache.tickets import Ticket


class Bounce:
    """Buffers of one page each, at most `limit` of them, used by one thread."""

    def __init__(self, page_bytes: int, limit: int) -> None:
        self._page_bytes = page_bytes
        self._left = limit
        self._free: list[memoryview] = []
        self._stuck: list[tuple[Sequence[Ticket], Sequence[memoryview]]] = []

    @property
    def spare(self) -> int:
        """How many `take` would find."""
        self._collect()
        return self._left + len(self._free)

    def take(self, count: int) -> list[memoryview]:
        """Up to `count` buffers: fewer while a store that hangs keeps some."""
        self._collect()
        while self._left and len(self._free) < count:
            self._left -= 1
            self._free.append(allocate(padded(self._page_bytes))[: self._page_bytes])
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give(self, buffers: Sequence[memoryview], *tickets: Ticket) -> None:
        """Give buffers back; those of tickets that haven't settled wait until they have."""
        self._stuck.append((tickets, buffers))
        self._collect()

    def _collect(self) -> None:
        waiting = []
        for tickets, buffers in self._stuck:
            if all(ticket.progress().settled for ticket in tickets):
                self._free += buffers
                for ticket in tickets:
                    ticket.release()
            else:
                waiting.append((tickets, buffers))
        self._stuck = waiting
