"""What an engine's block hashes stand for: the prefix key of the block's end, and its position.

Engines chain their hashes, so one hash always means one prefix, whichever replica or process says it: what is
known stays true, and a known hash keeps its key. Engines name a block's parent by hash alone, so a block
whose parent is unknown can't be placed.

Entries whose key is resident nowhere are dropped when room is needed, not before: they cost nothing until
then.
"""

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cache.prefix import MASK, Extra, Keys, block_sums, extra_mix
from engine_adapters.events import NO_PARENT, BlockEvents
from gateway.index.residency import Residency
from gateway.index.table import KeyTable, Slots, aligned, distinct

Positions = npt.NDArray[np.int64]

SWEEP: Final = 8192
UNPLACED: Final = -1


class EngineHashes:
    """Engine hash → (prefix key, position), for at most `limit` hashes."""

    def __init__(self, limit: int) -> None:
        self._table = KeyTable(limit)
        # What the hash in each slot stands for, key and end: side by side, for each is a cache line to fetch.
        # One that is being placed has no end yet and, for a key, the number of its block in the batch.
        self._named = aligned(self._table.limit + 1, 2)
        self.orphans = 0
        self._hand = 0

    @property
    def count(self) -> int:
        """Hashes known."""
        return self._table.count

    @property
    def nbytes(self) -> int:
        """Bytes taken, used or not."""
        return self._table.nbytes + self._named.nbytes

    @property
    def absent(self) -> int:
        """The slot of an unknown hash."""
        return self._table.absent

    def named(self, slots: Slots) -> tuple[Keys, Positions]:
        """Prefix keys and positions that the hashes in these slots stand for; 0 for `absent`."""
        named = self._named.take(slots, axis=0)
        return named[:, 0], named[:, 1].view(np.int64)

    def learn(self, events: BlockEvents) -> Slots:
        """The slot of each block of the batch; `absent` where nothing is known and nothing can be learned."""
        if events.stored.all():
            return self._learn(events)
        came = np.repeat(events.stored, events.counts)
        slots = np.empty(len(came), np.int64)
        slots[came] = self._learn(_stored_alone(events, came))
        slots[~came] = self._table.find(events.hashes[~came])
        return slots

    def make_room(self, blocks: int, residency: Residency) -> None:
        """Forget until `blocks` more fit: first what is resident nowhere, then the oldest blocks."""
        while self._table.room < blocks:
            chunk = np.arange(self._hand, min(self._hand + SWEEP, self._table.limit))
            self._hand = (self._hand + SWEEP) % self._table.limit
            used = chunk[self._table.keys[chunk] != 0]
            rows = residency.find(self._named[used, 0])
            gone = rows == residency.absent
            if np.count_nonzero(gone) < len(used) // 8:
                oldest = residency.oldest(rows, len(used) // 8)
                residency.evict(rows[oldest])
                gone[oldest] = True
            self._forget(used[gone])

    def _learn(self, events: BlockEvents) -> Slots:
        """The same for a batch of stored blocks alone."""
        slots = self._table.insert(events.hashes)
        new = (self._named.take(slots, axis=0)[:, 1] == 0).nonzero()[0]
        if new.size:
            # Backwards: of a hash that was stored twice the first counts.
            self._named[slots[new[::-1]], 0] = new[::-1].view(np.uint64)
            named = self._placed(events)
            placed = new[named[new, 1] > 0]
            self._named[slots[placed]] = named[placed]
            if placed.size < new.size:
                self._drop_orphans(slots, new)
        return slots

    def _drop_orphans(self, slots: Slots, new: Positions) -> None:
        orphans = new[self._named[slots[new], 1] == 0]
        self.orphans += len(orphans)
        self._forget(distinct(slots[orphans]))
        slots[orphans] = self.absent

    def _placed(self, events: BlockEvents) -> Keys:
        """The prefix key of each block and where it ends [blocks, 2]: 0 where the event's parent is known
        nowhere.

        An event's parent may be a block of another event of the batch, an earlier one.
        """
        at = self._table.find(events.parents)
        bases, starts = self.named(at)
        root = events.parents == NO_PARENT
        unknown = (starts == 0) & ~root
        pending = (unknown & (at != self.absent)).nonzero()[0]
        parents = bases[pending].view(np.int64)
        starts[unknown] = UNPLACED
        starts[root] = 0
        bases[root] = events.seeds[root]
        first = np.cumsum(events.counts) - events.counts
        owner = np.repeat(np.arange(len(first)), events.counts)
        step = np.arange(len(owner)) - first[owner]
        links = _follow(starts, pending, owner[parents], (step[parents] + 1) * events.block_tokens, parents)
        start = starts[owner]
        positions = np.where(start == UNPLACED, 0, start + step * events.block_tokens)
        sums = _sums(events, positions)
        within = np.cumsum(sums)
        within -= (within[first] - sums[first])[owner]
        _hand_down(bases, links, within)
        named = np.empty((len(owner), 2), np.uint64)
        named[:, 0] = within + bases[owner]
        named[:, 1] = np.where(start == UNPLACED, 0, positions + events.block_tokens)
        return named

    def _forget(self, slots: Slots) -> None:
        self._named[slots] = 0
        self._table.remove(slots)


class _Link(NamedTuple):
    """An event whose parent is a block of another event of its batch."""

    child: int
    parent: int
    block: int


def _stored_alone(events: BlockEvents, came: npt.NDArray[np.bool_]) -> BlockEvents:
    """The stored events of a batch; `came` tells which blocks are theirs."""
    number = np.cumsum(came) - 1
    return replace(
        events,
        stored=events.stored[events.stored],
        tiers=events.tiers[events.stored],
        counts=events.counts[events.stored],
        parents=events.parents[events.stored],
        seeds=events.seeds[events.stored],
        hashes=events.hashes[came],
        extras=tuple(extra._replace(block=int(number[extra.block])) for extra in events.extras),
    )


def _follow(
    starts: Positions, children: Positions, parents: Positions, lengths: Positions, blocks: Positions
) -> list[_Link]:
    """Place events whose parent is a block of another: fills in their starts.

    In order, for a parent is stored before its child.
    """
    links = []
    at = starts.tolist()
    columns = (children.tolist(), parents.tolist(), blocks.tolist(), lengths.tolist())
    for child, parent, block, length in zip(*columns, strict=True):
        if parent < child and at[parent] != UNPLACED:
            at[child] = at[parent] + length
            links.append(_Link(child, parent, block))
    starts[:] = at
    return links


def _sums(events: BlockEvents, positions: Positions) -> Keys:
    """What each block adds to the key of its parent."""
    sums = block_sums(events.tokens, positions)
    for extra in events.extras:
        place = Extra(int(positions[extra.block]) + extra.offset, extra.digest)
        sums[extra.block : extra.block + 1] += np.uint64(extra_mix(place))
    return sums


def _hand_down(bases: Keys, links: list[_Link], within: Keys) -> None:
    """Fill in the base key of each child event: its parent's, and what that adds up to the block it
    continues."""
    keys = bases.tolist()
    added = within[[link.block for link in links]].tolist()
    for (child, parent, _), more in zip(links, added, strict=True):
        keys[child] = (keys[parent] + more) & MASK
    bases[:] = keys
