"""Disk space of one sub-folder.

It grows by backed slots while cap, share and free-space floor allow, and shrinks.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cache.memory import BLOCK
from cache.tiers.ssd.device import Device
from cache.tiers.ssd.folder import Folder, Limits, Seat, physical
from cache.tiers.ssd.records import slot_bytes
from cache.tiers.ssd.table import ENTRY_BYTES, Owner, Table
from cache.tiers.ssd.uses import USED_BYTES, Uses

logger = logging.getLogger(__name__)

_STEP_BYTES = 1 << 30
_STEPS = 64
_MARGIN = 16 * BLOCK
"""What a file system may add of its own (extent blocks) when a file grows."""


class Growth(NamedTuple):
    """Slots that are backed by disk space from now on."""

    holes: list[int]
    """Given back earlier."""
    opened: int
    """New ones at the end of the file."""


class Space:
    """The files' sizes. Methods block and raise OSError; one thread at a time."""

    def __init__(self, folder: Folder, seat: Seat, limits: Limits, owner: Owner, files: "Files") -> None:
        self._folder = folder
        self._seat = seat
        self._limits = limits
        self.owner = owner
        self._files = files
        self._slot = slot_bytes(owner.page_bytes)
        self.slots = files.pages.size() // self._slot
        self.holes: list[int] = []
        self._told = False

    @property
    def capacity(self) -> int:
        """The most slots that the cap could ever allow."""
        return max(self._limits.cap // (self._slot + ENTRY_BYTES + USED_BYTES), 1)

    def grow(self) -> Growth:
        """Back some more slots, emptying other owners' sub-folders for it if need be."""
        if not self._seat.ours():
            return Growth([], 0)
        with self._folder.locked():
            fits = self._fits()
            while fits < 1 and self._at_cap() and self._folder.raid(self.owner):
                fits = self._fits()
            count = min(max(min(self._limits.cap // _STEPS, _STEP_BYTES) // self._slot, 1), fits)
            if count < 1:
                self._tell_of_other_caps()
                return Growth([], 0)
            return self._refill(count) if self.holes else self._extend(min(count, self.capacity - self.slots))

    def fit(self) -> None:
        """Cut off the slots beyond the cap, which may be lower than it was."""
        if self.slots > self.capacity:
            self.slots = self.capacity
            self._files.table.cut(self.slots)
            self._files.pages.truncate(self.slots * self._slot)

    def excess(self) -> int:
        """Bytes to give back now: beyond this process's share of the cap, or below the free-space floor.

        Everything, if the sub-folder was removed or replaced: nobody will find these pages again.
        """
        if not self._seat.ours():
            return self._files.pages.backed()
        with self._folder.locked():
            own, share = physical(self._seat.path), self._limits.cap // self._folder.shares()
            return max(own - share, self._limits.free_floor - self._folder.free_space(), 0)

    def give_back(self, slots: Iterable[int]) -> None:
        """Give back the disk space of free slots that were taken out of use; those become holes.

        Where the file system can't, they don't.
        """
        for first, count in _runs(slots):
            if self._files.pages.punch(first * self._slot, count * self._slot):
                self.holes.extend(range(first, first + count))

    def count_holes(self, free: list[int]) -> list[int]:
        """After a restart: which of the free slots may have no disk space behind them."""
        sparse = self._files.pages.backed() < self.slots * self._slot
        self.holes = free if sparse else []
        return self.holes

    def _fits(self) -> int:
        """How many more slots may be backed now."""
        own, shares = physical(self._seat.path), self._folder.shares()
        by_cap = self._limits.cap - self._folder.physical()
        by_share = self._limits.cap // shares - own
        by_floor = self._folder.free_space() - self._limits.free_floor
        room = min(by_cap, by_share, by_floor) - min(_MARGIN, self._limits.cap // 16) - BLOCK
        return room // (self._slot + ENTRY_BYTES + USED_BYTES)

    def _tell_of_other_caps(self) -> None:
        """A process with a larger cap fills the folder beyond ours, and we could never grow."""
        taken = self._folder.physical()
        if taken > self._limits.cap + _MARGIN and not self._told:
            self._told = True
            logger.warning(
                "ssd: %s takes %d bytes, and the cap here is %d: another process on it has a larger cap, and "
                "leaves this one no room. Give all of them the same cap",
                self._folder.path,
                taken,
                self._limits.cap,
            )

    def _at_cap(self) -> bool:
        """Whether the cap is the bound, rather than the file system: only then emptying others helps."""
        return self._limits.cap - self._folder.physical() < 2 * (self._slot + _MARGIN)

    def _refill(self, count: int) -> Growth:
        chosen, self.holes = self.holes[-count:], self.holes[:-count]
        for first, length in _runs(chosen):
            self._files.pages.reserve(first * self._slot, length * self._slot)
        return Growth(chosen, 0)

    def _extend(self, count: int) -> Growth:
        if count < 1:
            return Growth([], 0)
        self._files.pages.reserve(self.slots * self._slot, count * self._slot)
        self._files.table.reserve(self.slots + count)
        self._files.used.reserve(self.slots + count)
        self.slots += count
        return Growth([], count)


class Files(NamedTuple):
    """The three open files of a sub-folder."""

    pages: Device
    table: Table
    used: Uses

    def close(self) -> None:
        """Close them."""
        for file in self:
            file.close()


def _runs(slots: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of each run of neighbours."""
    first = count = 0
    for slot in sorted(slots):
        if count and slot == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = slot, 1
    if count:
        yield first, count
