"""A set of 64-bit keys in numpy, looked up and changed many keys at a time.

Buckets of eight slots, a cache line each. A key lives in the bucket that its bits, spread, name or, where
that has no room, in a spare slot that a dictionary tells: so few do that a second pass over arrays would cost
more. `_spills` counts them for each bucket, so most searches never ask the dictionary. All memory is taken up
front and slots never move: growing would stall the event loop, and callers keep values in columns of their
own, by slot.

0 means empty: of a key of 0 no answer is to be believed.
"""

import sys
from typing import Final

import numpy as np
import numpy.typing as npt

from cache.prefix import Keys

Slots = npt.NDArray[np.int64]

WIDTH: Final = 8
LEAST_SPARE: Final = 4096
LINE: Final = 8  # words of a cache line
HALF: Final = np.uint64(32)
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
    """At most `limit` keys in numbered slots. `absent` is the slot that stands for a key that isn't there."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self._buckets: Final = -(-limit * 3 // (2 * WIDTH))
        self._in_buckets: Final = self._buckets * WIDTH
        self.slots: Final = self._in_buckets + max(limit // 8, LEAST_SPARE)
        self.absent: Final = self.slots
        self.keys: Keys = aligned(self.slots, 1).reshape(-1)
        self._lines = self.keys[: self._in_buckets].reshape(self._buckets, WIDTH)
        self._spills: npt.NDArray[np.uint32] = np.zeros(self._buckets, np.uint32)
        self._spilled: dict[int, int] = {}
        self._spare: list[int] = []  # those that were used and are free again
        self._fresh = self._in_buckets  # the first of those that never were
        self.count = 0

    @property
    def nbytes(self) -> int:
        """Bytes taken, used or not; those of the dictionary come on top."""
        return self.keys.nbytes + self._spills.nbytes

    @property
    def room(self) -> int:
        """How many more keys certainly fit."""
        return min(self.limit - self.count, self.slots - self._fresh + len(self._spare))

    def find(self, keys: Keys) -> Slots:
        """The slot of each key, or `absent`."""
        buckets = self._home(keys)
        return self._search(buckets, self._lines.take(buckets, axis=0), keys)

    def insert(self, keys: Keys) -> Slots:
        """The slot of each key, taken if it wasn't there. Keys may repeat. There must be room."""
        buckets = self._home(keys)
        lines = self._lines.take(buckets, axis=0)
        slots = self._search(buckets, lines, keys)
        new = (slots == self.absent).nonzero()[0]
        if new.size == len(keys):
            return self._add(buckets, lines, keys)
        if new.size:
            slots[new] = self._add(buckets[new], lines[new], keys[new])
        return slots

    def remove(self, slots: Slots) -> None:
        """Empty these slots: distinct, and all in use."""
        spare = slots[slots >= self._in_buckets]
        if spare.size:
            keys = self.keys[spare]
            np.subtract.at(self._spills, self._home(keys), 1)
            for key in keys.tolist():
                self._spare.append(self._spilled.pop(key))
        self.keys[slots] = 0
        self.count -= len(slots)

    def _home(self, keys: Keys) -> Slots:
        spread = (keys * SPREAD) >> HALF
        spread *= np.uint64(self._buckets)
        spread >>= HALF
        return spread.view(np.int64)

    def _search(self, buckets: Slots, lines: Keys, keys: Keys) -> Slots:
        """The slot of each key, or `absent`; `lines` are what its bucket holds."""
        hits = (lines == keys[:, None]).view(np.uint64)[:, 0]
        slots = _place(buckets, hits)
        if np.count_nonzero(hits) < len(keys):
            missed = (hits == 0).nonzero()[0]
            slots[missed] = self.absent
            spilled = missed[self._spills[buckets[missed]].nonzero()[0]]
            if spilled.size:
                where = self._spilled.get
                slots[spilled] = [where(key, self.absent) for key in keys[spilled].tolist()]
        return slots

    def _add(self, buckets: Slots, lines: Keys, keys: Keys) -> Slots:
        """Take slots for keys that aren't there."""
        free = (lines == 0).view(np.uint64)[:, 0]
        slots = _place(buckets, free & (~free + np.uint64(1)))
        roomy = free.nonzero()[0]
        if roomy.size == len(keys):
            self.keys[slots] = keys
        else:
            self.keys[slots[roomy]] = keys[roomy]
        lost = (self.keys.take(slots) != keys).nonzero()[0]
        if not lost.size:
            self.count += len(distinct(slots))
            return slots
        # There was no room; or two wanted one slot, and the last writer has it.
        self.count += len(distinct(np.delete(slots, lost)))
        slots[lost] = self._spill(keys[lost], buckets[lost])
        return slots

    def _spill(self, keys: Keys, buckets: Slots) -> list[int]:
        """Take spare slots for keys that found none in their buckets."""
        of, short = self._spilled, []
        for key, bucket in zip(keys.tolist(), buckets.tolist(), strict=True):
            if key not in of:
                of[key] = self._take_spare()
                short.append(bucket)
        slots = [of[key] for key in keys.tolist()]
        self.keys[slots] = keys
        np.add.at(self._spills, short, 1)
        self.count += len(short)
        return slots

    def _take_spare(self) -> int:
        if self._spare:
            return self._spare.pop()
        self._fresh += 1
        return self._fresh - 1


def _place(buckets: Slots, bits: Keys) -> Slots:
    """The slot in each bucket that the only byte set to 1 in `bits` names."""
    return (buckets << 3) + ((bits * BYTE_INDEX) >> np.uint64(61)).view(np.int64)
