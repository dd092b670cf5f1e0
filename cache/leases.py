"""Leases: who keeps which pages from eviction, until when. Hits, tickets and pins are all leases."""

import heapq
import itertools
import math
from collections.abc import Sequence

from cache.tiers.base import Hold
from cache.tiers.slots import Book


class Lease:
    """Slots of `host`, and holds in stores below, kept until released or until the deadline."""

    __slots__ = ("_table", "cleared", "deadline", "holds", "read", "slots")

    def __init__(self, table: "Leases", deadline: float, read: bool) -> None:
        self._table = table
        self.deadline = deadline
        self.read = read
        """Whether its owner copies from the slots, which must stay as they are then, whatever is cleared."""
        self.cleared = False
        """Whether pages were cleared that it kept."""
        self.slots: dict[int, None] = {}
        self.holds: list[Hold] = []

    def add(self, slots: Sequence[int]) -> None:
        """Keep more slots; a slot may be added more than once."""
        self._table.keep(self, slots)


class Leases:
    """The one table of leases over a host tier's book. Called with the hierarchy's lock held.

    Deadlines are of `time.monotonic`, so a clock that is set back ends nothing early or late.
    """

    def __init__(self, book: Book | None) -> None:
        self._book = book
        self._open: set[Lease] = set()
        self._due: list[tuple[float, int, Lease]] = []
        self._number = itertools.count()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def slots(self) -> int:
        """Slots over all leases, each counted once a lease."""
        return sum(len(lease.slots) for lease in self._open)

    @property
    def kept(self) -> int:
        """Slots of those that only keep pages for others."""
        return sum(len(lease.slots) for lease in self._open if not lease.read)

    def take(self, deadline: float, read: bool = True) -> Lease:
        """An empty lease; not to be `read`: pins and prefetches only keep pages for others."""
        if math.isnan(deadline):  # in the heap it would hold up all others
            deadline = -math.inf
        lease = Lease(self, deadline, read)
        self._open.add(lease)
        heapq.heappush(self._due, (deadline, next(self._number), lease))
        return lease

    def keep(self, lease: Lease, slots: Sequence[int]) -> None:
        """Add slots to a lease that is open; one that has ended keeps nothing."""
        if lease not in self._open or self._book is None:
            return
        new = {slot: None for slot in slots if slot not in lease.slots}
        self._book.hold(list(new))
        lease.slots.update(new)

    def extend(self, lease: Lease, deadline: float) -> None:
        """Let an open lease end later; with `math.inf`, only when it is released."""
        if lease in self._open and deadline > lease.deadline:
            lease.deadline = deadline
            if deadline < math.inf:
                heapq.heappush(self._due, (deadline, next(self._number), lease))

    def cleared(self, slots: Sequence[int]) -> None:
        """The pages in these slots were removed on request: who only kept them lets the slots go."""
        removed = set(slots)
        for lease in self._open:
            gone = [] if lease.read else [slot for slot in lease.slots if slot in removed]
            if gone and self._book is not None:
                lease.cleared = True
                lease.slots = {slot: None for slot in lease.slots if slot not in removed}
                self._book.unhold(gone)

    def holds(self, lease: Lease) -> bool:
        """Whether it is open."""
        return lease in self._open

    def release(self, lease: Lease) -> None:
        """End a lease; ending it again is harmless."""
        if lease not in self._open:
            return
        self._open.remove(lease)
        if self._book is not None:
            self._book.unhold(list(lease.slots))
        for hold in lease.holds:
            hold.drop()
        lease.slots, lease.holds = {}, []
        if len(self._due) > 2 * len(self._open) + 64:  # most of them have ended early
            self._due = [due for due in self._due if due[2] in self._open]
            heapq.heapify(self._due)

    def expire(self, now: float) -> int:
        """End the leases whose deadline has passed; returns how many."""
        ended = 0
        while self._due and (self._due[0][0] <= now or self._due[0][2] not in self._open):
            lease = heapq.heappop(self._due)[2]
            if lease in self._open and lease.deadline <= now:
                ended += 1
                self.release(lease)
        return ended
