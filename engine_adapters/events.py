"""What an engine or its agent tells about residency, in a form that belongs to none of them.

A stream is a sequence of changes. Blocks come in columns, many events a batch, because objects a block would
cost more than all the rest: an event is a row of `stored`, `tiers`, `counts`, and its blocks are the next
`counts` entries of the block columns.

Engines name blocks by hashes of their own and send the tokens (`BlockEvents`); an agent names pages by prefix
key (`PageEvents`). Batches hold at most `SLICE_BLOCKS` blocks, so that applying one never holds the event
loop long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cache.prefix import Keys, Tokens

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Tiers = npt.NDArray[np.uint8]

SLICE_BLOCKS: Final = 1024
NO_PARENT: Final = 0


class Tier(IntEnum):
    """Where KV lies, fastest first."""

    GPU = 0
    HOST = 1
    SSD = 2
    SHARED = 3


class Origin(NamedTuple):
    """Whose cache it is: a replica, and its data-parallel rank."""

    replica: str
    rank: int = 0


class BlockExtra(NamedTuple):
    """Something besides tokens that is hashed into a block: an image's digest, `offset` tokens into it."""

    block: int
    offset: int
    digest: int


@dataclass(frozen=True, slots=True, eq=False)
class BlockEvents:
    """Blocks stored and removed, in order, named by the engine's hashes folded to 64 bits.

    Of a stored event, `parents` is the hash of the block before its first, or NO_PARENT, and then `seeds` is
    the prefix-key seed it starts from. `tokens` [stored blocks, tokens a block] are those of stored blocks
    alone.
    """

    stored: Flags
    tiers: Tiers
    counts: Counts
    parents: Keys
    seeds: Keys
    hashes: Keys
    tokens: Tokens
    extras: tuple[BlockExtra, ...] = ()

    @property
    def block_tokens(self) -> int:
        """Tokens a block, the same for all stored blocks of a batch; 0 where nothing was stored."""
        return int(self.tokens.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class PageEvents:
    """Pages stored and removed, in order: prefix key and the position at which the page ends."""

    stored: Flags
    tiers: Tiers
    counts: Counts
    keys: Keys
    ends: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Cleared:
    """All that the origin held in these tiers is gone, or can no longer be vouched for."""

    tiers: tuple[Tier, ...]


Change = BlockEvents | PageEvents | Cleared


class Sink(Protocol):
    """Who listens to streams: the gateway's index."""

    @property
    def backlog(self) -> int:
        """Blocks that were pushed and aren't applied yet. A source waits while there are too many."""

    def push(self, origin: Origin, changes: Sequence[Change]) -> None:
        """Take the next changes of this origin, in order."""


def joined(batches: Sequence[BlockEvents]) -> BlockEvents:
    """One batch of several, all of one block size or without stored blocks."""
    if len(batches) == 1:
        return batches[0]
    stores = [batch.tokens for batch in batches if batch.block_tokens]
    extras: list[BlockExtra] = []
    before = 0
    for batch in batches:
        extras += [extra._replace(block=extra.block + before) for extra in batch.extras]
        before += len(batch.hashes)
    return BlockEvents(
        stored=np.concatenate([batch.stored for batch in batches]),
        tiers=np.concatenate([batch.tiers for batch in batches]),
        counts=np.concatenate([batch.counts for batch in batches]),
        parents=np.concatenate([batch.parents for batch in batches]),
        seeds=np.concatenate([batch.seeds for batch in batches]),
        hashes=np.concatenate([batch.hashes for batch in batches]),
        tokens=np.concatenate(stores or [batches[0].tokens]),
        extras=tuple(extras),
    )
