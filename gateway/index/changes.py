"""Applying one slice of changes to the rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cache.prefix import Keys
from engine_adapters.events import BlockEvents, Flags, PageEvents, Tier, Tiers, joined
from gateway.index.hashes import EngineHashes, Positions
from gateway.index.residency import TOLD_IN, Columns, Residency
from gateway.index.targets import NO_STORE, Target


class Blocks(NamedTuple):
    """Blocks or pages that came or went, in order, a row each."""

    keys: Keys
    ends: Positions
    stored: Flags
    tiers: Tiers
    columns: Columns

    def only(self, chosen: npt.NDArray[np.int64] | Flags) -> "Blocks":
        """Some of the rows."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        return Blocks(
            self.keys[chosen],
            self.ends[chosen],
            self.stored[chosen],
            self.tiers[chosen],
            self.columns[chosen],
        )


def apply_blocks(
    slice_: Sequence[tuple[Target, BlockEvents]], hashes: EngineHashes, residency: Residency
) -> None:
    """Apply batches of engine events, those of many streams at once."""
    events = joined([batch for _, batch in slice_])
    hashes.make_room(len(events.hashes), residency)
    slots = hashes.learn(events)
    columns = np.concatenate([_columns(target, batch.tiers) for target, batch in slice_])
    blocks = _rows(events, columns, *hashes.named(slots))
    _mark(blocks.only(slots != hashes.absent), residency)


def apply_pages(target: Target, events: PageEvents, residency: Residency) -> None:
    """Apply one batch of an agent's tier stream."""
    ends = events.ends.astype(np.int64)
    _mark(_rows(events, _columns(target, events.tiers), events.keys, ends), residency)


def _columns(target: Target, tiers: Tiers) -> Columns:
    return np.where(tiers == Tier.SHARED, target.store, target.column)


def _rows(events: BlockEvents | PageEvents, columns: Columns, keys: Keys, ends: Positions) -> Blocks:
    event = np.repeat(np.arange(len(events.counts)), events.counts)
    return Blocks(keys, ends, events.stored[event], events.tiers[event], columns[event])


def _mark(blocks: Blocks, residency: Residency) -> None:
    """Set and clear bits. Of several changes to one bit the last counts: it is what order comes to."""
    blocks = blocks.only(blocks.columns != NO_STORE)
    residency.make_room(len(blocks.keys))
    if blocks.stored.all():
        residency.set(blocks.keys, blocks.ends, TOLD_IN[blocks.tiers], blocks.columns)
        return
    blocks = blocks.only(_last_of_each_bit(blocks))
    came, went = blocks.only(blocks.stored), blocks.only(~blocks.stored)
    residency.set(came.keys, came.ends, TOLD_IN[came.tiers], came.columns)
    for tier in Tier:
        of_tier = went.only(went.tiers == tier)
        if len(of_tier.keys):
            residency.clear(residency.find(of_tier.keys), tier, of_tier.columns)


def _last_of_each_bit(blocks: Blocks) -> npt.NDArray[np.int64]:
    """Indices of the last change to each (key, tier, column), which are folded into one number."""
    cache = (blocks.columns * len(Tier) + blocks.tiers + 1).astype(np.uint64)
    bit = blocks.keys ^ cache * np.uint64(0x9E3779B97F4A7C15)
    _, last = np.unique(bit[::-1], return_index=True)
    return len(bit) - 1 - last
