"""Which page leaves a full tier first."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_END_BITS = 24
_END_MAX = (1 << _END_BITS) - 1
_RANK_MAX = (1 << 64) - 1
_SAMPLE = 1 << 14
"""Of more slots than these, some stand for all where a rank is only to be about right."""

Slots = Sequence[int] | NDArray[np.int64]


class Eviction(ABC):
    """Orders the slots of one tier. Called under the tier's lock, so it does no I/O.

    `used` is the logical time of a call: one number for all pages of that call, never a clock's.
    """

    @abstractmethod
    def enter(self, slot: int, end_token: int, used: int) -> None:
        """A page whose last token is `end_token` came to lie in the slot."""

    def recall(
        self, slots: NDArray[np.int64], end_tokens: NDArray[np.uint32], used: NDArray[np.uint64]
    ) -> None:
        """Pages lie in these slots since before a restart."""
        for entered in zip(slots.tolist(), end_tokens.tolist(), used.tolist(), strict=True):
            self.enter(*entered)

    @abstractmethod
    def touch(self, slots: Slots, used: int) -> None:
        """The pages in the slots were used by one call."""

    @abstractmethod
    def leave(self, slots: Slots) -> None:
        """The pages in the slots are gone."""

    @abstractmethod
    def allow(self, slots: Slots) -> None:
        """The pages in the slots, held until now, may be evicted again."""

    @abstractmethod
    def victims(self, count: int, evictable: NDArray[np.bool_], share: float = 1.0) -> list[int]:
        """Up to `count` evictable slots, first to go first, out of the coldest `share` of all pages."""


class Lru(Eviction):
    """Least recently used first; within one call, the page that lies furthest from the prompt's start.

    So a prefix outlives what extends it. Both orders are one number: the logical time above the page's
    inverted end token. A sorted batch of the coldest slots is taken at a time; a touched slot's number no
    longer equals the one in the batch, which is how it is skipped.
    """

    def __init__(self, capacity: int) -> None:
        self._rank: NDArray[np.uint64] = np.zeros(capacity, np.uint64)
        self._batch: list[tuple[int, int]] = []
        self._batch_ends = 0

    def enter(self, slot: int, end_token: int, used: int) -> None:  # noqa: D102
        rank = (used << _END_BITS) | (_END_MAX - min(end_token, _END_MAX))
        self._rank[slot] = rank
        if rank <= self._batch_ends:
            self._batch.clear()

    def recall(  # noqa: D102
        self, slots: NDArray[np.int64], end_tokens: NDArray[np.uint32], used: NDArray[np.uint64]
    ) -> None:
        ends = np.uint64(_END_MAX) - np.minimum(end_tokens, np.uint32(_END_MAX))
        self._rank[slots] = (used << np.uint64(_END_BITS)) | ends
        self._batch.clear()

    def touch(self, slots: Slots, used: int) -> None:  # noqa: D102
        ends = self._rank[slots] & np.uint64(_END_MAX)
        self._rank[slots] = np.maximum(self._rank[slots], np.uint64(used << _END_BITS) | ends)

    def leave(self, slots: Slots) -> None:  # noqa: D102
        self._rank[slots] = 0

    def allow(self, slots: Slots) -> None:  # noqa: D102
        if len(slots) and int(self._rank[slots].min()) <= self._batch_ends:
            self._batch.clear()

    def victims(self, count: int, evictable: NDArray[np.bool_], share: float = 1.0) -> list[int]:  # noqa: D102
        limit = self._limit(share)
        chosen: list[int] = []
        while len(chosen) < count:
            if not self._batch and not self._refill(count, evictable, chosen):
                break
            rank, slot = self._batch[-1]
            if rank > limit:
                break
            self._batch.pop()
            if evictable[slot] and int(self._rank[slot]) == rank:
                chosen.append(slot)
        return chosen

    def _limit(self, share: float) -> int:
        if share >= 1:
            return _RANK_MAX
        ranks = self._rank[:: max(len(self._rank) // _SAMPLE, 1)]
        ranks = ranks[ranks > 0]
        count = int(len(ranks) * share)
        return int(np.partition(ranks, count - 1)[count - 1]) if count else 0

    def _refill(self, count: int, evictable: NDArray[np.bool_], chosen: list[int]) -> bool:
        """Take the next coldest slots, coldest last, so that a pop is cheap."""
        wanted = max(count, 64, len(evictable) // 256)
        slots = _without(self._cold(wanted + len(chosen), evictable), chosen)
        if not len(slots):
            slots = _without(np.flatnonzero(evictable), chosen)
        if not len(slots):
            return False
        ranks = self._rank[slots]
        size = min(len(slots), wanted)
        coldest = np.argpartition(ranks, size - 1)[:size]
        coldest = coldest[np.argsort(ranks[coldest])[::-1]]
        self._batch = list(zip(ranks[coldest].tolist(), slots[coldest].tolist(), strict=True))
        self._batch_ends = self._batch[0][0]
        return True

    def _cold(self, count: int, evictable: NDArray[np.bool_]) -> NDArray[np.int64]:
        """All evictable slots below some rank, about `count` if there are many: a sample tells which rank.

        Sorting out the coldest of a million would hold the tier's lock for tens of milliseconds.
        """
        each = max(len(evictable) // _SAMPLE, 1)
        sampled = np.arange(0, len(evictable), each)
        ranks = self._rank[sampled[evictable[sampled]]]
        place = count // each
        if place >= len(ranks):
            return np.flatnonzero(evictable)
        limit = np.partition(ranks, place)[place]
        return np.flatnonzero(evictable & (self._rank <= limit))


def _without(slots: NDArray[np.int64], others: Sequence[int]) -> NDArray[np.int64]:
    return np.setdiff1d(slots, others) if others else slots
