"""The book of a tier made of equal slots: which page lies where, who holds it, which goes first."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.eviction import Eviction, Lru, Slots
from cache.keys import Namespace, Page

ABSENT = -1

_EMPTY: dict[bytes, int] = {}


class Entry(NamedTuple):
    """A page and its slot."""

    namespace: Namespace
    page: Page
    slot: int


Told = tuple[int, int]
"""A page's prefix key and end token."""


class Recalled(NamedTuple):
    """Pages that a restart found, as columns in slot order."""

    slots: NDArray[np.int64]
    namespaces: Sequence[Namespace]
    keys: Sequence[bytes]
    prefix_keys: NDArray[np.uint64]
    end_tokens: NDArray[np.uint32]
    tenants: NDArray[np.uint64]
    used: NDArray[np.uint64]
    """Logical time of the last use."""
    sequences: NDArray[np.uint64]
    """Order in which the pages were written."""

    def first(self, count: int) -> "Recalled":
        """The first so many."""
        return Recalled._make(column[:count] for column in self)


class Book:
    """Pages by name over `capacity` slots; plain memory, no locks and no I/O.

    A slot is free, filling (taken, its page invisible), or live. It takes part in eviction while it is live
    and nobody holds it. A page removed while it is held disappears at once; its slot is freed with the last
    hold. At most `opened` slots are given out: a tier that grows opens more.
    """

    def __init__(
        self,
        capacity: int,
        opened: int | None = None,
        eviction: Callable[[int], Eviction] = Lru,
    ) -> None:
        self.capacity = capacity
        self.opened = capacity if opened is None else opened
        self.eviction = eviction(capacity)
        self._live: dict[Namespace, dict[bytes, int]] = {}
        self._filling: dict[tuple[Namespace, bytes], int] = {}
        self._keys: list[bytes | None] = []
        self._spaces: list[Namespace] = []
        self._space_ids: dict[Namespace, int] = {}
        self._space = np.zeros(capacity, np.uint32)
        self._prefix = np.zeros(capacity, np.uint64)
        self._end = np.zeros(capacity, np.uint32)
        self._tenant = np.zeros(capacity, np.uint64)
        self._used = np.zeros(capacity, np.uint64)
        self._holds = np.zeros(capacity, np.int32)
        self._visible = np.zeros(capacity, np.bool_)
        self._evictable = np.zeros(capacity, np.bool_)
        self._free: list[int] = []
        self._count = 0
        self._retired = 0

    # -- looking ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Live pages."""
        return self._count

    @property
    def taken(self) -> int:
        """Slots that are filling, live, or removed and still held."""
        return len(self._keys) - len(self._free) - self._retired

    @property
    def fresh(self) -> int:
        """Opened slots that were never taken."""
        return self.opened - len(self._keys)

    @property
    def held(self) -> int:
        """Holds over all slots."""
        return int(self._holds.sum())

    def find(self, namespace: Namespace, keys: Sequence[bytes]) -> list[int]:
        """The slot of each key, or ABSENT."""
        get = self._live.get(namespace, _EMPTY).get
        return [get(key, ABSENT) for key in keys]

    def has(self, namespace: Namespace, keys: Sequence[bytes]) -> list[bool]:
        """Whether each page is live."""
        return list(map(self._live.get(namespace, _EMPTY).__contains__, keys))

    def filling(self, namespace: Namespace, key: bytes) -> bool:
        """Whether a slot was taken for this page and it isn't live yet."""
        return (namespace, key) in self._filling

    def entry(self, slot: int) -> Entry:
        """What a taken slot was taken for."""
        key = self._keys[slot]
        assert key is not None, f"slot {slot} is free"
        page = Page(key, int(self._prefix[slot]), int(self._end[slot]), int(self._tenant[slot]))
        return Entry(self._spaces[self._space[slot]], page, slot)

    def live(self, tenant: int | None = None) -> list[int]:
        """The slots of live pages, all or one tenant's."""
        chosen = self._visible if tenant is None else self._visible & (self._tenant == tenant)
        slots: list[int] = np.flatnonzero(chosen).tolist()
        return slots

    def residency(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Prefix keys and end tokens of all live pages."""
        return self._prefix[self._visible], self._end[self._visible]

    def used(self, slots: int) -> NDArray[np.uint64]:
        """Logical time of the last use of what lies, or lay, in the first `slots` slots."""
        return self._used[:slots].copy()

    # -- slots ------------------------------------------------------------------------------------

    def take(self, namespace: Namespace, page: Page) -> int:
        """A free slot for the page, filling from now on; ABSENT if there is none, or none for such a page."""
        slot = self._next_free() if page.recordable else ABSENT
        if slot == ABSENT:
            return ABSENT
        self._assign(slot, namespace, page)
        return slot

    def publish(self, slot: int, used: int) -> None:
        """Make a filling slot's page live."""
        namespace, page, _ = self.entry(slot)
        del self._filling[namespace, page.key]
        self._live.setdefault(namespace, {})[page.key] = slot
        self._visible[slot] = True
        self._count += 1
        self._used[slot] = used
        self.eviction.enter(slot, page.end_token, used)
        self._evictable[slot] = self._holds[slot] == 0

    def abandon(self, slot: int, shun: bool = False) -> None:
        """Give up a filling slot; it is free when nobody holds it. One to `shun` is given out last."""
        namespace, page, _ = self.entry(slot)
        del self._filling[namespace, page.key]
        if not self._holds[slot]:
            self._release(slot)
            if shun:
                self._free.insert(0, self._free.pop())

    def remove(self, slots: Sequence[int]) -> list[Told]:
        """Make distinct live pages invisible; their slots are free when nobody holds them.

        Says whose they were. A clear removes all pages under its tier's lock: the work of one is kept small.
        """
        at = np.asarray(slots, np.int64)
        for slot, space in zip(slots, self._space[at].tolist(), strict=True):
            namespace = self._spaces[space]
            pages = self._live[namespace]
            del pages[self._keys[slot]]  # type: ignore[arg-type]
            if not pages:
                del self._live[namespace]
        self._visible[at] = self._evictable[at] = False
        self._count -= len(at)
        self.eviction.leave(at)
        for slot in at[self._holds[at] == 0].tolist():
            self._release(slot)
        return self.told(slots)

    def told(self, slots: Sequence[int]) -> list[Told]:
        """Prefix keys and end tokens of what lies, or lay last, in these slots."""
        return list(zip(self._prefix[slots].tolist(), self._end[slots].tolist(), strict=True))

    def victims(self, count: int, share: float = 1.0) -> list[int]:
        """Up to `count` live slots nobody holds, first to go first, out of the coldest `share`."""
        return self.eviction.victims(count, self._evictable, share)

    # -- use --------------------------------------------------------------------------------------

    def touch(self, slots: Slots, used: int) -> None:
        """The pages were used by one call at logical time `used`."""
        if len(slots):
            self._used[slots] = used
            self.eviction.touch(slots, used)

    def hold(self, slots: Slots) -> None:
        """Keep distinct taken slots from eviction and reuse."""
        if len(slots):
            self._holds[slots] += 1
            self._evictable[slots] = False

    def unhold(self, slots: Slots) -> None:
        """Undo one hold of each of distinct slots."""
        if not len(slots):
            return
        self._holds[slots] -= 1
        at = np.asarray(slots)
        loose = at[self._holds[at] == 0]
        allowed = loose[self._visible[loose]]
        self._evictable[allowed] = True
        self.eviction.allow(allowed)
        for slot in loose[~self._visible[loose]].tolist():
            key = self._keys[slot]
            if key is not None and self._filling.get((self._spaces[self._space[slot]], key)) != slot:
                self._release(slot)

    def retire(self, slots: Iterable[int]) -> None:
        """Take free slots out of use, until `restore`."""
        gone = set(slots)
        self._free = [slot for slot in self._free if slot not in gone]
        self._retired += len(gone)

    def restore(self, slots: Iterable[int]) -> None:
        """Bring retired slots back as free ones."""
        before = len(self._free)
        self._free.extend(slots)
        self._retired -= len(self._free) - before

    def free_slots(self) -> list[int]:
        """All slots that are open and free; those that were never taken come first."""
        fresh = range(self.opened - 1, len(self._keys) - 1, -1)
        self._free = [*fresh, *self._free]
        self._keys.extend([None] * len(fresh))
        return self._free.copy()

    def recall(self, found: Iterable[Recalled]) -> None:
        """Take over what a restart found in the slots opened so far: pages where they lie, the rest free.

        Of two that claim the same name, the one written later is the page.
        """
        self._keys = [None] * self.opened
        written = np.zeros(self.opened, np.uint64)
        for some in found:
            written[some.slots] = some.sequences
            self._prefix[some.slots] = some.prefix_keys
            self._end[some.slots] = some.end_tokens
            self._tenant[some.slots] = some.tenants
            self._used[some.slots] = some.used
            for slot, namespace, key in zip(some.slots.tolist(), some.namespaces, some.keys, strict=True):
                pages = self._live.setdefault(namespace, {})
                twin = pages.setdefault(key, slot)
                if twin != slot and written[twin] < written[slot]:
                    pages[key] = slot
        for namespace, pages in self._live.items():
            slots = np.fromiter(pages.values(), np.int64, len(pages))
            self._space[slots] = self._space_id(namespace)
            self._visible[slots] = self._evictable[slots] = True
            self._count += len(slots)
            self.eviction.recall(slots, self._end[slots], self._used[slots])
            for key, slot in pages.items():
                self._keys[slot] = key
        self._free = [slot for slot in range(self.opened - 1, -1, -1) if self._keys[slot] is None]

    def audit(self) -> None:
        """Check that the book's parts agree; AssertionError names the first that doesn't."""
        live = {slot for pages in self._live.values() for slot in pages.values()}
        filling = set(self._filling.values())
        free = set(self._free)
        assert len(free) == len(self._free), "a slot is free twice"
        assert len(live | filling | free) == len(live) + len(filling) + len(free), "a slot is in two states"
        assert live == set(np.flatnonzero(self._visible).tolist()), "live pages and visible slots differ"
        assert len(live) == self._count, "the count of live pages is wrong"
        assert int(self._holds.min(initial=0)) >= 0, "a slot is held less than never"
        removed = {slot for slot, key in enumerate(self._keys) if key is not None} - live - filling
        assert all(self._holds[slot] for slot in removed), "a removed slot leaked"
        evictable = self._visible & (self._holds == 0)
        assert bool((evictable == self._evictable).all()), "evictable slots are wrong"

    def _assign(self, slot: int, namespace: Namespace, page: Page) -> None:
        self._keys[slot] = page.key
        self._space[slot] = self._space_id(namespace)
        self._prefix[slot] = page.prefix_key
        self._end[slot] = page.end_token
        self._tenant[slot] = page.tenant
        self._filling[namespace, page.key] = slot

    def _next_free(self) -> int:
        if self._free:
            return self._free.pop()
        if len(self._keys) < self.opened:
            self._keys.append(None)
            return len(self._keys) - 1
        return ABSENT

    def _release(self, slot: int) -> None:
        self._keys[slot] = None
        self._free.append(slot)

    def _space_id(self, namespace: Namespace) -> int:
        known = self._space_ids.get(namespace)
        if known is None:
            known = self._space_ids[namespace] = len(self._spaces)
            self._spaces.append(namespace)
        return known
