"""A set of 64-bit keys in numpy, looked up and changed many keys at a time; each has a number, its slot.

Buckets of eight places, a cache line each. A key is in the bucket that its bits, spread, name or, where that
has no room, in a dictionary: so few are that a second pass over arrays would cost more. `_spills` counts them
for each bucket, so most searches never ask the dictionary.

Slots are dense, whatever the buckets' load, because callers keep columns by slot, and those are wider than
what is here. All memory is taken up front and slots never change: growing would stall the event loop.

0 means empty in here, so a key of 0 counts as 1.
"""

import sys
from typing import Final

import numpy as np
import numpy.typing as npt

from cache.prefix import Keys

Slots = npt.NDArray[np.int64]

WIDTH: Final = 8
LINE: Final = 8  # words of a cache line
HALF: Final = np.uint64(32)
LEAST: Final = np.uint64(1)
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
    """At most `limit` keys in slots 0 to `limit` - 1; `absent` is the slot of a key that isn't there."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self.absent: Final = limit
        self.keys: Keys = np.zeros(limit, np.uint64)
        """By slot; 0 where that is free."""
        self._buckets: Final = -(-limit * 5 // (2 * WIDTH))
        self._lines = aligned(self._buckets, WIDTH)
        self._places: Keys = self._lines.reshape(-1)
        # The slot of the key in each place; the last stands for all places that a key is not in.
        self._slots: npt.NDArray[np.uint32] = np.zeros(len(self._places) + 1, np.uint32)
        self._slots[-1] = self.absent
        self._spills: npt.NDArray[np.uint32] = np.zeros(self._buckets, np.uint32)
        self._spilled: dict[int, int] = {}
        self._free: npt.NDArray[np.uint32] = np.arange(limit, dtype=np.uint32)[::-1].copy()
        self.room = limit

    @property
    def count(self) -> int:
        """Keys that are there."""
        return self.limit - self.room

    @property
    def nbytes(self) -> int:
        """Bytes taken, used or not; those of the dictionary come on top."""
        arrays = (self.keys, self._lines, self._slots, self._spills, self._free)
        return sum(array.nbytes for array in arrays)

    def find(self, keys: Keys) -> Slots:
        """The slot of each key, or `absent`."""
        keys = np.maximum(keys, LEAST)
        buckets = self._home(keys)
        return self._search(buckets, self._lines.take(buckets, axis=0), keys)

    def insert(self, keys: Keys) -> Slots:
        """The slot of each key, taken if it wasn't there. Keys may repeat. There must be room for all."""
        keys = np.maximum(keys, LEAST)
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
        """Free these slots: distinct, and all in use."""
        keys = self.keys.take(slots)
        buckets = self._home(keys)
        hits = (self._lines.take(buckets, axis=0) == keys[:, None]).view(np.uint64)[:, 0]
        self._places[_place(buckets, hits)[hits != 0]] = 0
        spilled = (hits == 0).nonzero()[0]
        np.subtract.at(self._spills, buckets[spilled], 1)
        for key in keys[spilled].tolist():
            del self._spilled[key]
        self.keys[slots] = 0
        self._free[self.room : self.room + len(slots)] = slots
        self.room += len(slots)

    def _home(self, keys: Keys) -> Slots:
        spread = (keys * SPREAD) >> HALF
        spread *= np.uint64(self._buckets)
        spread >>= HALF
        return spread.view(np.int64)

    def _search(self, buckets: Slots, lines: Keys, keys: Keys) -> Slots:
        """The slot of each key, or `absent`; `lines` are what its bucket holds."""
        hits = (lines == keys[:, None]).view(np.uint64)[:, 0]
        places = _place(buckets, hits)
        if np.count_nonzero(hits) == len(keys):
            return self._slots.take(places).astype(np.int64)
        missed = (hits == 0).nonzero()[0]
        places[missed] = len(self._places)
        slots = self._slots.take(places).astype(np.int64)
        spilled = missed[self._spills[buckets[missed]].nonzero()[0]]
        if spilled.size:
            where = self._spilled.get
            slots[spilled] = [where(key, self.absent) for key in keys[spilled].tolist()]
        return slots

    def _add(self, buckets: Slots, lines: Keys, keys: Keys) -> Slots:
        """Take slots for keys that aren't there."""
        free = (lines == 0).view(np.uint64)[:, 0]
        places = _place(buckets, free & (~free + np.uint64(1)))
        roomy = free.nonzero()[0]
        if roomy.size == len(keys):
            self._places[places] = keys
        else:
            self._places[places[roomy]] = keys[roomy]
        # Others had no room, or wanted the place of another: the last writer has it.
        lost = (self._places.take(places) != keys).nonzero()[0]
        if not lost.size:
            return self._number(places, keys)
        slots = np.empty(len(keys), np.int64)
        settled = np.delete(np.arange(len(keys)), lost)
        slots[settled] = self._number(places[settled], keys[settled])
        slots[lost] = self._spill(keys[lost], buckets[lost])
        return slots

    def _number(self, places: Slots, keys: Keys) -> Slots:
        """Give the keys in these places a slot each; a key that was given twice has one."""
        given = self._free[self.room - len(keys) : self.room].copy()
        self._slots[places] = given
        slots = self._slots.take(places)
        unused = given[slots != given]
        self.room -= len(keys)
        self._free[self.room : self.room + len(unused)] = unused
        self.room += len(unused)
        self.keys[slots] = keys
        return slots.astype(np.int64)

    def _spill(self, keys: Keys, buckets: Slots) -> list[int]:
        """Slots for keys that have no place in their buckets."""
        of, short = self._spilled, []
        for key, bucket in zip(keys.tolist(), buckets.tolist(), strict=True):
            if key not in of:
                self.room -= 1
                of[key] = int(self._free[self.room])
                short.append(bucket)
        slots = [of[key] for key in keys.tolist()]
        self.keys[slots] = keys
        np.add.at(self._spills, short, 1)
        return slots


def _place(buckets: Slots, bits: Keys) -> Slots:
    """The place in each bucket that the only byte set to 1 in `bits` names."""
    return (buckets << 3) + ((bits * BYTE_INDEX) >> np.uint64(61)).view(np.int64)
