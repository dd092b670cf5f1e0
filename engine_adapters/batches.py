"""An engine's events on their way into columns: joined while they are short, cut where they are long."""

from array import array
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from cache.prefix import seed
from engine_adapters.events import NO_PARENT, SLICE_BLOCKS, BlockEvents, BlockExtra, Change, Cleared, Tier


class Batches:
    """Collects events, in order, as batches of at most SLICE_BLOCKS blocks of one size.

    Hashes and tokens that don't fit their column (64 and 32 bits, unsigned) raise TypeError or OverflowError;
    what came before stays whole.
    """

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._columns = _Columns()

    def stored(
        self,
        tier: Tier,
        parent: int,
        start: int,
        hashes: list[int],
        tokens: list[int],
        size: int,
        extras: Sequence[BlockExtra] = (),
    ) -> None:
        """Add blocks that came, of `size` tokens each.

        Args:
            parent: hash of the block before the first, or NO_PARENT, and then `start` is the seed.
        """
        count = len(hashes)
        if count <= SLICE_BLOCKS:
            self._add(tier, parent, start, hashes, tokens, size, extras)
            return
        for at in range(0, count, SLICE_BLOCKS):
            piece = hashes[at : at + SLICE_BLOCKS]
            theirs = tokens[at * size : (at + SLICE_BLOCKS) * size]
            here = [e._replace(block=e.block - at) for e in extras if at <= e.block < at + SLICE_BLOCKS]
            self._add(tier, hashes[at - 1] if at else parent, start, piece, theirs, size, here)

    def _add(
        self,
        tier: Tier,
        parent: int,
        start: int,
        hashes: list[int],
        tokens: list[int],
        size: int,
        extras: Sequence[BlockExtra],
    ) -> None:
        if not self._columns.fits(size, len(hashes)):
            self._flush()
        self._columns.add_stored(tier, parent, start, hashes, tokens, size, extras)

    def removed(self, tier: Tier, hashes: list[int]) -> None:
        """Add blocks that went."""
        for at in range(0, len(hashes), SLICE_BLOCKS):
            piece = hashes[at : at + SLICE_BLOCKS]
            if not self._columns.fits(0, len(piece)):
                self._flush()
            self._columns.add_removed(tier, piece)

    def cleared(self, tiers: tuple[Tier, ...]) -> None:
        """All that these tiers held is gone."""
        self._flush()
        self._changes.append(Cleared(tiers))

    def take(self) -> list[Change]:
        """All changes since the last call."""
        self._flush()
        changes, self._changes = self._changes, []
        return changes

    def _flush(self) -> None:
        columns, self._columns = self._columns, _Columns()
        if columns.counts:
            self._changes.append(columns.events())


class _Columns:
    """A batch in the making."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._stored: list[bool] = []
        self._tiers: list[Tier] = []
        self._parents: list[int] = []
        self._seeds: list[int] = []
        self._hashes = array("Q")
        self._tokens = array("I")
        self._size = 0
        self._extras: list[BlockExtra] = []

    def fits(self, block_tokens: int, blocks: int) -> bool:
        """Whether `blocks` more of this size may join."""
        same = not block_tokens or self._size in (0, block_tokens)
        return same and len(self._hashes) + blocks <= SLICE_BLOCKS

    def add_stored(
        self,
        tier: Tier,
        parent: int,
        start: int,
        hashes: list[int],
        tokens: list[int],
        size: int,
        extras: Sequence[BlockExtra],
    ) -> None:
        """Add a run of blocks that came."""
        before = len(self._hashes)
        self._hashes.fromlist(hashes)
        try:
            self._tokens.fromlist(tokens)
        except (OverflowError, TypeError):
            del self._hashes[before:]
            raise
        if extras:
            self._extras += [extra._replace(block=extra.block + before) for extra in extras]
        self._size = size
        self._row(True, tier, parent, start, len(hashes))

    def add_removed(self, tier: Tier, hashes: list[int]) -> None:
        """Add blocks that went."""
        self._hashes.fromlist(hashes)
        self._row(False, tier, NO_PARENT, 0, len(hashes))

    def events(self) -> BlockEvents:
        """The finished batch."""
        tokens = np.frombuffer(self._tokens, np.uint32)
        return BlockEvents(
            stored=np.array(self._stored, np.bool_),
            tiers=np.array(self._tiers, np.uint8),
            counts=np.array(self.counts, np.int64),
            parents=np.array(self._parents, np.uint64),
            seeds=np.array(self._seeds, np.uint64),
            hashes=np.frombuffer(self._hashes, np.uint64),
            tokens=tokens.reshape(len(tokens) // max(self._size, 1), self._size),
            extras=tuple(self._extras),
        )

    def _row(self, stored: bool, tier: Tier, parent: int, start: int, count: int) -> None:
        self._stored.append(stored)
        self._tiers.append(tier)
        self.counts.append(count)
        self._parents.append(parent)
        self._seeds.append(start)


@lru_cache(maxsize=4096)
def seed_of(lora: str | None, salt: str | None) -> int:
    """`cache.prefix.seed`, remembered: a stream repeats few of them."""
    return seed(lora, salt)
