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
            self._joined(count, size).store(tier, parent, start, hashes, tokens, size, extras)
            return
        for at in range(0, count, SLICE_BLOCKS):
            piece = hashes[at : at + SLICE_BLOCKS]
            theirs = tokens[at * size : (at + SLICE_BLOCKS) * size]
            here = [e._replace(block=e.block - at) for e in extras if at <= e.block < at + SLICE_BLOCKS]
            before = hashes[at - 1] if at else parent
            self._joined(len(piece), size).store(tier, before, start, piece, theirs, size, here)

    def removed(self, tier: Tier, hashes: list[int]) -> None:
        """Add blocks that went."""
        for at in range(0, len(hashes), SLICE_BLOCKS):
            piece = hashes[at : at + SLICE_BLOCKS]
            self._joined(len(piece), 0).remove(tier, piece)

    def cleared(self, tiers: tuple[Tier, ...]) -> None:
        """All that these tiers held is gone."""
        self._flush()
        self._changes.append(Cleared(tiers))

    def take(self) -> list[Change]:
        """All changes since the last call."""
        self._flush()
        changes, self._changes = self._changes, []
        return changes

    def _joined(self, blocks: int, size: int) -> "_Columns":
        """The batch that so many blocks more of this size may join; 0 for blocks without tokens."""
        columns = self._columns
        if len(columns.hashes) + blocks > SLICE_BLOCKS or (size and columns.size not in (0, size)):
            self._flush()
        return self._columns

    def _flush(self) -> None:
        columns, self._columns = self._columns, _Columns()
        if columns.hashes:
            self._changes.append(columns.events())


class _Columns:
    """A batch in the making. `hashes` and `_tokens` are its blocks', `_rows` its events'."""

    def __init__(self) -> None:
        self.hashes = array("Q")
        self.size = 0
        self._tokens = array("I")
        self._rows: list[tuple[bool, int, int, int, int]] = []
        self._extras: list[BlockExtra] = []

    def store(
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
        before = len(self.hashes)
        self.hashes.fromlist(hashes)
        try:
            self._tokens.fromlist(tokens)
        except (OverflowError, TypeError):
            del self.hashes[before:]
            raise
        if extras:
            self._extras += [extra._replace(block=extra.block + before) for extra in extras]
        self.size = size
        self._rows.append((True, tier, len(hashes), parent, start))

    def remove(self, tier: Tier, hashes: list[int]) -> None:
        """Add blocks that went."""
        self.hashes.fromlist(hashes)
        self._rows.append((False, tier, len(hashes), NO_PARENT, 0))

    def events(self) -> BlockEvents:
        """The finished batch."""
        stored, tiers, counts, parents, seeds = zip(*self._rows, strict=True)
        tokens = np.frombuffer(self._tokens, np.uint32)
        return BlockEvents(
            stored=np.array(stored, np.bool_),
            tiers=np.frombuffer(bytes(tiers), np.uint8),
            counts=np.array(counts, np.int64),
            parents=np.array(parents, np.uint64),
            seeds=np.array(seeds, np.uint64),
            hashes=np.frombuffer(self.hashes, np.uint64),
            tokens=tokens.reshape(len(tokens) // max(self.size, 1), self.size),
            extras=tuple(self._extras),
        )


@lru_cache(maxsize=4096)
def seed_of(lora: str | None, salt: str | None) -> int:
    """`cache.prefix.seed`, remembered: a stream repeats few of them."""
    return seed(lora, salt)
