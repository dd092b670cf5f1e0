"""What an engine's block hashes stand for: the prefix key of the block's end, and its position.

Engines chain their hashes, so one hash always means one prefix, whichever replica or process says it: what is
known stays true, and a known hash keeps its key. Engines name a block's parent by hash alone, so a block
whose parent is unknown can't be placed.

Entries whose key is resident nowhere are dropped when room is needed, not before: they cost nothing until
then.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from cache.prefix import MASK, Extra, Keys, block_sums, extra_mix
from engine_adapters.events import NO_PARENT, BlockEvents
from gateway.index.residency import Residency
from gateway.index.table import KeyTable, Slots

Positions = npt.NDArray[np.int64]

SWEEP: Final = 8192
UNPLACED: Final = -1


class EngineHashes:
    """Engine hash → (prefix key, position), for at most `limit` hashes."""

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self._table = KeyTable(limit * 4 // 3)
        self._named: Keys = np.zeros((self._table.slots + 1, 2), np.uint64)
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
        both = self._named.take(slots, axis=0)
        return both[:, 0], both[:, 1].astype(np.int64)

    def learn(self, events: BlockEvents) -> Slots:
        """The slot of each block of the batch; `absent` where nothing is known and nothing can be learned."""
        slots = self._table.find(events.hashes)
        new = slots == self.absent
        if not new.any():
            return slots
        event_of = np.repeat(np.arange(len(events.counts)), events.counts)
        fresh = np.zeros(len(events.counts), np.bool_)
        fresh[event_of[new]] = True
        fresh &= events.stored
        if fresh.any():
            self._place(events, np.flatnonzero(fresh), slots)
            self.orphans += int(np.count_nonzero((slots == self.absent) & events.stored[event_of]))
            unknown = (slots == self.absent) & ~events.stored[event_of]
            if unknown.any():  # removed, and perhaps stored in this very batch
                slots[unknown] = self._table.find(events.hashes[unknown])
        return slots

    def make_room(self, blocks: int, residency: Residency) -> None:
        """Forget until `blocks` more fit: first what is resident nowhere, then the oldest blocks."""
        while self._table.count + blocks > self.limit:
            chunk = np.arange(self._hand, min(self._hand + SWEEP, self._table.slots))
            self._hand = (self._hand + SWEEP) % self._table.slots
            used = chunk[self._table.keys[chunk] != 0]
            rows = residency.find(self._named[used, 0])
            gone = rows == residency.absent
            if np.count_nonzero(gone) < len(used) // 8:
                oldest = residency.oldest(rows, len(used) // 8)
                residency.evict(rows[oldest])
                gone[oldest] = True
            self._table.remove(used[gone])

    def _place(self, events: BlockEvents, chosen: Positions, slots: Slots) -> None:
        """Compute the keys of these stored events, where their parents are known, and keep the new ones.

        Their slots are filled in.
        """
        parents = events.parents[chosen]
        at = self._table.find(parents)
        bases, starts = self.named(at)
        root = parents == NO_PARENT
        starts[at == self.absent] = UNPLACED
        starts[root] = 0
        chain = _Chain(events, chosen, starts, np.where(root, events.seeds[chosen], bases))
        wanted = (slots[chain.blocks] == self.absent) & (chain.ends > 0)
        new = chain.blocks[wanted]
        slots[new] = taken = self._table.add(events.hashes[new])
        self._named[taken] = np.stack([chain.keys[wanted], chain.ends[wanted].astype(np.uint64)], axis=1)


class _Chain:
    """The blocks of some stored events of a batch, one after the other, and the prefix key of each.

    An event's parent may be a block of another event, an earlier one. Where it is known nowhere, the event's
    blocks have `ends` of 0.
    """

    def __init__(self, events: BlockEvents, chosen: Positions, starts: Positions, bases: Keys) -> None:
        counts = events.counts[chosen]
        first = np.cumsum(counts) - counts
        self._owner = np.repeat(np.arange(len(chosen)), counts)
        self._step = np.arange(len(self._owner)) - first[self._owner]
        self.blocks: Positions = (np.cumsum(events.counts) - events.counts)[chosen][self._owner] + self._step
        children, parent_blocks = self._follow(events, chosen, starts)
        start = starts[self._owner]
        placed = start != UNPLACED
        positions = np.where(placed, start + self._step * events.block_tokens, 0)
        self.ends: Positions = np.where(placed, positions + events.block_tokens, 0)
        sums = np.cumsum(self._sums(events, chosen, positions))
        before = np.append(np.uint64(0), sums)[first]
        within = sums - before[self._owner]
        _hand_down(bases, children, self._owner[parent_blocks], within[parent_blocks])
        self.keys: Keys = within + bases[self._owner]

    def _follow(
        self, events: BlockEvents, chosen: Positions, starts: Positions
    ) -> tuple[Positions, Positions]:
        """Place events whose parent is a block of this chain; returns these events and their parents' blocks.

        In order, for a parent is stored before its child; a hash stored twice counts where it came first.
        """
        children = np.flatnonzero(starts == UNPLACED)
        if not children.size:
            return children, children
        hashes, parents = events.hashes[self.blocks], events.parents[chosen[children]]
        order = np.argsort(hashes, kind="stable")
        blocks = order.take(np.searchsorted(hashes, parents, sorter=order), mode="clip")
        found = hashes[blocks] == parents
        children, blocks = children[found], blocks[found]
        lengths = (self._step[blocks] + 1) * events.block_tokens
        at = starts.tolist()
        links = zip(children.tolist(), self._owner[blocks].tolist(), lengths.tolist(), strict=True)
        for child, parent, length in links:
            if at[parent] != UNPLACED:
                at[child] = at[parent] + length
        starts[:] = at
        placed = starts[children] != UNPLACED
        return children[placed], blocks[placed]

    def _sums(self, events: BlockEvents, chosen: Positions, positions: Positions) -> Keys:
        """What each block adds to the key of its parent."""
        stored = np.where(events.stored, events.counts, 0)
        rows = (np.cumsum(stored) - stored)[chosen][self._owner] + self._step
        sums = block_sums(events.tokens.take(rows, axis=0), positions)
        for extra in events.extras:
            for block in np.flatnonzero(self.blocks == extra.block).tolist():
                place = Extra(int(positions[block]) + extra.offset, extra.digest)
                sums[block : block + 1] += np.uint64(extra_mix(place))
        return sums


def _hand_down(bases: Keys, children: Positions, parents: Positions, added: Keys) -> None:
    """Fill in the base key of each child event: its parent's, and what that adds up to the block it
    continues."""
    keys = bases.tolist()
    for child, parent, more in zip(children.tolist(), parents.tolist(), added.tolist(), strict=True):
        keys[child] = (keys[parent] + more) & MASK
    bases[:] = keys
