"""A set of 64-bit keys in numpy, looked up and changed many keys at a time.

Buckets of eight slots, a cache line each. A key lives in the bucket that its bits, spread, name or, when that
is full, in the next with room; `_passed` counts for each bucket the keys that passed it by, so a search knows
where to end and removing leaves no tombstones. All memory is taken up front and slots never move: growing
would stall the event loop, and callers keep values in columns of their own, by slot.

0 means empty: of a key of 0 no answer is to be believed.
"""

import sys
from typing import Final

import numpy as np
import numpy.typing as npt

from cache.prefix import Keys

Slots = npt.NDArray[np.int64]

WIDTH: Final = 8
LINE: Final = 8  # words of a cache line
SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: also keys that are no hashes scatter
# The byte of a u64 that holds its only set bit 1 << 8c is c = (value * BYTE_INDEX) >> 61.
BYTE_INDEX: Final = np.uint64(sum(c << (61 - 8 * c) for c in range(WIDTH)))
if sys.byteorder != "little":
    raise ImportError(
        "the index reads rows of bytes as little-endian words: it needs a little-endian machine"
    )


def distinct(slots: Slots) -> Slots:
    """The slots without repetitions, in order. (np.unique hashes integers and is slower for so few.)"""
    ordered = np.sort(slots)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def aligned(rows: int, width: int) -> Keys:
    """Zeros [rows, width] that start at a cache line, so that a row of eight words is one line and not
    two."""
    words = np.zeros(rows * width + LINE, np.uint64)
    start = -words.ctypes.data % (LINE * words.itemsize) // words.itemsize
    return words[start : start + rows * width].reshape(rows, width)


class KeyTable:
    """Keys in numbered slots. `absent` is the slot that stands for a key that isn't there."""

    def __init__(self, slots: int) -> None:
        self._shift = np.uint64(64 - max(1, (max(slots, 2 * WIDTH) - 1).bit_length() - 3))
        self._buckets = 1 << (64 - int(self._shift))
        self._rows = aligned(self._buckets, WIDTH)
        self._passed: npt.NDArray[np.int32] = np.zeros(self._buckets, np.int32)
        self.keys: Keys = self._rows.reshape(-1)
        self.slots: Final = self._buckets * WIDTH
        self.absent: Final = self.slots
        self.count = 0

    @property
    def nbytes(self) -> int:
        """Bytes taken, used or not."""
        return self._rows.nbytes + self._passed.nbytes

    def find(self, keys: Keys) -> Slots:
        """The slot of each key, or `absent`."""
        buckets = self._home(keys)
        slots, missed = self._probe(buckets, keys)
        while missed.size:
            missed = missed[self._passed[buckets[missed]] > 0]
            if not missed.size:
                break
            buckets[missed] = (buckets[missed] + 1) % self._buckets
            slots[missed], still = self._probe(buckets[missed], keys[missed])
            missed = missed[still]
        return slots

    def insert(self, keys: Keys) -> Slots:
        """The slot of each key, taken if it wasn't there. Keys may repeat. There must be room."""
        slots = self.find(keys)
        new = (slots == self.absent).nonzero()[0]
        if new.size:
            slots[new] = self.add(keys[new])
        return slots

    def add(self, keys: Keys) -> Slots:
        """Take slots for keys that aren't there. They may repeat. There must be room."""
        slots = np.full(len(keys), self.absent)
        buckets = self._home(keys)
        pending = np.arange(len(keys))
        while pending.size:
            free = (self._rows.take(buckets[pending], axis=0) == 0).view(np.uint64)[:, 0]
            full, fits, free = pending[free == 0], pending[free != 0], free[free != 0]
            if full.size:
                _, first = np.unique(keys[full], return_index=True)
                np.add.at(self._passed, buckets[full[first]], 1)
                buckets[full] = (buckets[full] + 1) % self._buckets
            lowest = free & (~free + np.uint64(1))
            taken = (buckets[fits] << 3) + ((lowest * BYTE_INDEX) >> np.uint64(61)).view(np.int64)
            self.keys[taken] = keys[fits]
            slots[fits] = taken
            lost = fits[self.keys[taken] != keys[fits]]  # two wanted one slot: the last writer has it
            pending = np.concatenate([full, lost])
        self.count += len(distinct(slots))
        return slots

    def remove(self, slots: Slots) -> None:
        """Empty these slots: distinct, and all in use."""
        buckets = slots // WIDTH
        distance = (buckets - self._home(self.keys[slots])) % self._buckets
        while (displaced := np.flatnonzero(distance)).size:
            distance[displaced] -= 1
            buckets[displaced] -= 1
            np.subtract.at(self._passed, buckets[displaced] % self._buckets, 1)
        self.keys[slots] = 0
        self.count -= len(slots)

    def _home(self, keys: Keys) -> Slots:
        return ((keys * SPREAD) >> self._shift).view(np.int64)

    def _probe(self, buckets: Slots, keys: Keys) -> tuple[Slots, Slots]:
        """Slots of the keys that lie in these buckets, and the indices of those that don't."""
        hits = (self._rows.take(buckets, axis=0) == keys[:, None]).view(np.uint64)[:, 0]
        slots = (buckets << 3) + ((hits * BYTE_INDEX) >> np.uint64(61)).view(np.int64)
        missed = (hits == 0).nonzero()[0]
        if missed.size:
            slots[missed] = self.absent
        return slots, missed
