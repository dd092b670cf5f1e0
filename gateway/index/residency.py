"""Which caches hold which prefixes: for each prefix key a row of bits, a bit a cache.

A row has a word (or more) for each plane, and one for its age, which makes it a whole cache line; a cache is
a column, the same in all planes of its kind. Besides
the planes of the four tiers there are three of aging: what is known by routing alone sits in `HINT`, and a
sighting of shared storage in `SHARED`, until the column's lifetime sweeps it on to `HINT_OLD` or
`SHARED_OLD`, and once more until it is gone. So an entry that may expire lives between one and two half-lives
and costs one bit.

Rows are dropped when their last bit is, or, when there is no room, oldest first; of one age, the longest
prefixes first, for a prefix outlives what extends it.
"""

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cache.prefix import Keys
from engine_adapters.events import Tier
from gateway.index.table import KeyTable, Slots, aligned, distinct

Bits = npt.NDArray[np.uint64]
Columns = npt.NDArray[np.int64]
Planes = npt.NDArray[np.int64]

SWEEP: Final = 8192
WORD: Final = 64
END_BITS: Final = 24
"""Of an age's 64: more tokens than a prompt has. The rest counts changes, for years."""
LAST_END: Final = 2**END_BITS - 1


class Plane(IntEnum):
    """A kind of bit in a row. Those of one tier are neighbours, the tiers in their order."""

    HINT_OLD = 0
    HINT = 1
    GPU = 2
    HOST = 3
    SSD = 4
    SHARED = 5
    SHARED_OLD = 6


PLANES: Final = len(Plane)
ROW_PLANES: Final = PLANES + 1
"""With the one that holds the age."""
PLANES_OF: Final = {
    Tier.GPU: (Plane.HINT_OLD, Plane.HINT, Plane.GPU),
    Tier.HOST: (Plane.HOST,),
    Tier.SSD: (Plane.SSD,),
    Tier.SHARED: (Plane.SHARED, Plane.SHARED_OLD),
}
TOLD_IN: Final = np.array([Plane.GPU, Plane.HOST, Plane.SSD, Plane.SHARED], np.int64)
"""By tier: the plane of what events tell."""


class Move(NamedTuple):
    """Bits under `mask` [words] leave plane `source`, for plane `target` or, if that is None, for good."""

    source: Plane
    target: Plane | None
    mask: Bits


def plane_of(row: Bits, plane: Plane) -> Bits:
    """The words of one plane, of a row or of rows [..., width]."""
    words = row.shape[-1] // ROW_PLANES
    return row[..., plane * words : (plane + 1) * words]


class Residency:
    """Prefix key → bits, for at most `limit` keys in `columns` caches of each kind."""

    def __init__(self, limit: int, columns: int) -> None:
        self.limit: Final = limit
        self.words: Final = -(-columns // WORD)
        self.width: Final = ROW_PLANES * self.words
        self._table = KeyTable(limit)
        # The row after the last stays empty: it is what an absent key's slot reads.
        self._rows = aligned(self._table.limit + 1, self.width)
        self._flat = self._rows.reshape(-1)
        # The last word of each row: when it was last stored or predicted, then its end, descending.
        self._age = self._rows[:, -1]
        self._stamp = 0
        self._hand = 0
        self.evicted = 0

    @property
    def count(self) -> int:
        """Keys known."""
        return self._table.count

    @property
    def slots(self) -> int:
        """Slots that a sweep visits."""
        return self._table.limit

    @property
    def absent(self) -> int:
        """The slot of an unknown key."""
        return self._table.absent

    @property
    def nbytes(self) -> int:
        """Bytes taken, used or not."""
        return self._table.nbytes + self._rows.nbytes

    def find(self, keys: Keys) -> Slots:
        """The row of each key, or `absent`."""
        return self._table.find(keys)

    def read(self, slots: Slots, mask: Bits | None) -> Bits:
        """The bits of each row, those alone that `mask` [width] selects: [slots, width]. The last word is
        0."""
        rows = self._rows.take(slots, axis=0)
        if mask is not None:
            rows &= mask
        rows[:, -1] = 0
        return rows

    def set(
        self, keys: Keys, ends: npt.NDArray[np.int64], planes: Plane | Planes, columns: int | Columns
    ) -> Slots:
        """Set a bit of each key; plane and column may be one for all. Returns their rows."""
        rows = self._table.insert(keys)
        self._stamp += 1
        self._age[rows] = (self._stamp << END_BITS) + LAST_END - np.minimum(ends, LAST_END)
        at, bit = self._place(rows, planes, columns)
        np.bitwise_or.at(self._flat, at, bit)
        return rows

    def clear(self, rows: Slots, tier: Tier, columns: int | Columns) -> None:
        """Clear a tier's bits, hints included, and drop rows that held nothing else."""
        there = rows != self.absent
        rows, columns = rows[there], np.broadcast_to(columns, rows.shape)[there]
        for plane in PLANES_OF[tier]:
            at, bit = self._place(rows, plane, columns)
            np.bitwise_and.at(self._flat, at, ~bit)
        self._drop_empty(rows)

    def has(self, rows: Slots, plane: Plane, column: int) -> npt.NDArray[np.bool_]:
        """Whether each row has this bit."""
        at, bit = self._place(rows, plane, column)
        has: npt.NDArray[np.bool_] = self._flat[at] & bit != 0
        return has

    def sweep(self, start: int, moves: list[Move]) -> int:
        """Apply moves to a few thousand slots from `start`; returns where the next sweep starts."""
        end = min(start + SWEEP, self._table.limit)
        for move in moves:
            for word in np.flatnonzero(move.mask).tolist():
                source = self._rows[start:end, self._word(move.source) + word]
                moved = source & move.mask[word]
                rows = np.flatnonzero(moved)
                source[rows] &= ~move.mask[word]
                if move.target is not None:
                    self._rows[start:end, self._word(move.target) + word][rows] |= moved[rows]
                else:
                    self._drop_empty(rows + start)
        return end

    def make_room(self, rows: int) -> None:
        """Evict the oldest until `rows` more fit."""
        while self._table.room < rows:
            chunk = np.arange(self._hand, min(self._hand + SWEEP, self._table.limit))
            self._hand = (self._hand + SWEEP) % self._table.limit
            used = chunk[self._table.keys[chunk] != 0]
            self.evict(used[self.oldest(used, max(len(used) // 8, min(len(used), 1)))])

    def oldest(self, rows: Slots, count: int) -> npt.NDArray[np.int64]:
        """Indices of the `count` rows to evict first."""
        return np.argpartition(self._age[rows], count - 1)[:count] if count else np.zeros(0, np.int64)

    def evict(self, rows: Slots) -> None:
        """Drop rows, whoever holds them. Absent ones may be among them."""
        rows = distinct(rows[rows != self.absent])
        self._rows[rows] = 0
        self._table.remove(rows)
        self.evicted += len(rows)

    def _word(self, plane: Plane) -> int:
        return plane * self.words

    def _place(
        self, rows: Slots, planes: Plane | Planes, columns: int | Columns
    ) -> tuple[Slots, Bits | np.uint64]:
        """Where in `_flat` the bits of a column are, and which bit of the word."""
        at = rows * self.width
        at += planes * self.words + columns // WORD
        return at, np.uint64(1) << np.asarray(columns % WORD, np.uint64)[()]

    def _drop_empty(self, rows: Slots) -> None:
        empty = distinct(rows[~self._rows[rows, :-1].any(axis=1)])
        self._table.remove(empty[self._table.keys[empty] != 0])
