"""Whose caches the index knows: replicas by data-parallel rank, and stores that several of them reach.

Each has a column of the residency rows. A target's `pages` are the tokens a page of each of its tiers, the
grid on which its keys are looked up; 0 where nothing is known to be.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from engine_adapters.events import Origin, Tier
from gateway.index.errors import IndexFullError
from gateway.index.residency import PLANES_OF, ROW_PLANES, WORD, Bits, plane_of

NO_STORE: Final = -1
DEFAULT_PAGE: Final = 16
"""Tokens a page of an engine's own cache, until its events tell."""


class Store(NamedTuple):
    """Shared storage as a replica sees it: what lies there is of use within one namespace alone."""

    store_id: str
    namespace: str


@dataclass(slots=True, eq=False)
class Target:
    """One cache hierarchy that requests can be sent to.

    `told` are the tiers whose page size events have shown. `expecting_since` is when traffic began that must
    cause events; `silent_since`, when they had been missing for too long.
    """

    origin: Origin
    column: int
    store: int
    sends_events: bool
    pages: list[int] = field(default_factory=lambda: [DEFAULT_PAGE, *[0] * (len(Tier) - 1)])
    told: set[Tier] = field(default_factory=set)
    aged: float = -math.inf
    expecting_since: float | None = None
    silent_since: float | None = None

    def column_in(self, tier: Tier) -> int:
        """The column of this tier's bits."""
        return self.store if tier is Tier.SHARED else self.column

    def learn_page(self, tier: Tier, tokens: int) -> bool:
        """Note the page size that an event showed; returns whether it is news.

        Engines that cache parts of blocks tell smaller sizes too: the largest is the page.
        """
        if tier in self.told and tokens <= self.pages[tier]:
            return False
        self.told.add(tier)
        changed = self.pages[tier] != tokens
        self.pages[tier] = tokens
        return changed


class View(NamedTuple):
    """The bits that lie on one grid: look up keys every `stride` tokens, and read what `mask` [width]
    selects."""

    stride: int
    mask: Bits


class Reach(NamedTuple):
    """A store's column, and the targets that reach it: a bit at each one's own column."""

    column: int
    members: int


class Targets:
    """All targets, their columns, and the grids on which they are looked up."""

    def __init__(self, columns: int) -> None:
        self.words: Final = -(-columns // WORD)
        self._free = list(range(columns))
        self._free_stores = list(range(columns))
        self._stores: dict[Store, int] = {}
        self._by_origin: dict[Origin, Target] = {}
        self.all: list[Target] = []
        self.refresh()

    def get(self, origin: Origin) -> Target | None:
        """The target of this origin, while it is attached."""
        return self._by_origin.get(origin)

    def add(self, origin: Origin, store: Store | None, sends_events: bool) -> Target:
        """A new target. Raises IndexFullError, naming the remedy, when all columns are taken."""
        if not self._free:
            raise IndexFullError(
                f"the index has room for {len(self.all)} replicas and ranks, and {origin} is one more: "
                "raise its number of caches"
            )
        at = self._column_of(store) if store else NO_STORE
        target = Target(origin, self._free.pop(0), at, sends_events)
        self._by_origin[origin] = target
        return target

    def remove(self, origin: Origin) -> Target:
        """Take a target out of all answers. Its columns stay taken until `release`."""
        target = self._by_origin.pop(origin)
        self._stores = {
            store: at for store, at in self._stores.items() if self.shared(target) or at != target.store
        }
        self.refresh()
        return target

    def release(self, target: Target, with_store: bool) -> None:
        """Give a removed target's column back, and its store's, once their bits are cleared."""
        self._free.insert(0, target.column)
        if with_store and target.store != NO_STORE:
            self._free_stores.insert(0, target.store)

    def equip(self, target: Target, store: Store | None) -> bool:
        """Give a target without a store this one; returns whether it has this one now, or none if this is
        None. Raises IndexFullError."""
        if store is not None and target.store == NO_STORE:
            target.store = self._column_of(store)
        return target.store == (self._stores.get(store, NO_STORE - 1) if store else NO_STORE)

    def shared(self, target: Target) -> bool:
        """Whether another target reaches the same store."""
        return any(other.store == target.store for other in self._by_origin.values() if other is not target)

    def refresh(self) -> None:
        """Rebuild what answers read, after targets or page sizes changed."""
        self.all = list(self._by_origin.values())
        self.columns = np.array([target.column for target in self.all], np.int64)
        self.stores = self._reach()
        self.origins = tuple(target.origin for target in self.all)
        strides = sorted({page for target in self.all for page in target.pages if page})
        self.views = [View(stride, self._mask(stride)) for stride in strides]
        self.stride = int(np.gcd.reduce(strides)) if strides else 1

    def mask(self, target: Target, tier: Tier) -> Bits:
        """The bits [width] of one target in one tier."""
        bits = np.zeros(ROW_PLANES * self.words, np.uint64)
        column = target.column_in(tier)
        if column != NO_STORE:
            for plane in PLANES_OF[tier]:
                plane_of(bits, plane)[column // WORD] = np.uint64(1 << column % WORD)
        return bits

    def _reach(self) -> list[Reach]:
        members: defaultdict[int, int] = defaultdict(int)
        for target in self.all:
            if target.store != NO_STORE:
                members[target.store] |= 1 << target.column
        return [Reach(*each) for each in members.items()]

    def _mask(self, stride: int) -> Bits:
        bits = np.zeros(ROW_PLANES * self.words, np.uint64)
        for target in self.all:
            for tier in Tier:
                if target.pages[tier] == stride:
                    bits |= self.mask(target, tier)
        return bits

    def _column_of(self, store: Store) -> int:
        if store not in self._stores:
            if not self._free_stores:
                raise IndexFullError(
                    f"no column is free for store {store.store_id}: raise the number of caches"
                )
            self._stores[store] = self._free_stores.pop(0)
        return self._stores[store]
