"""`host`: pages in CPU memory that the adapter provides, as equal slots."""

from collections.abc import Callable, Sequence

from cache.errors import SettingsError
from cache.eviction import Eviction, Lru
from cache.keys import Namespace, Page
from cache.tiers.base import Change, Known, OnChange, Tier, Usage
from cache.tiers.slots import ABSENT, Book


class Host:
    """Allocation, holds and eviction over a writable memoryview of equal slots.

    The memory belongs to the adapter, which copies pages in and out of it. Called with the hierarchy's lock
    held; nothing here blocks.
    """

    def __init__(
        self,
        memory: memoryview,
        slot_bytes: int,
        page_bytes: int | None = None,
        eviction: Callable[[int], Eviction] = Lru,
    ) -> None:
        """Cut `memory` into slots of `slot_bytes`, of which a page fills the first `page_bytes` (or all)."""
        self.page_bytes = slot_bytes if page_bytes is None else page_bytes
        if memory.readonly or memory.ndim != 1 or memory.itemsize != 1:
            raise SettingsError("the host tier needs a flat, writable memoryview of bytes")
        if not 0 < self.page_bytes <= slot_bytes <= memory.nbytes:
            raise SettingsError(
                f"a host tier of {memory.nbytes} bytes has no room for slots of {slot_bytes} bytes "
                f"with pages of {self.page_bytes}: make it larger, or the page smaller"
            )
        self._memory = memory
        self._slot_bytes = slot_bytes
        self.book = Book(memory.nbytes // slot_bytes, eviction=eviction)
        self._on_change: OnChange = lambda change: None

    def listen(self, on_change: OnChange) -> None:
        """Report changes from now on."""
        self._on_change = on_change

    def page(self, slot: int) -> memoryview:
        """The bytes of a slot's page."""
        start = slot * self._slot_bytes
        return self._memory[start : start + self.page_bytes]

    def make_room(self, count: int, share: float = 1.0) -> list[int]:
        """Slots whose pages must leave so that `count` slots are free, coldest first; may be too few."""
        missing = count - (self.book.capacity - self.book.taken)
        return self.book.victims(missing, share) if missing > 0 else []

    def take(self, namespace: Namespace, page: Page) -> int:
        """A slot for a page, held by its filler and invisible until `publish`; ABSENT when none is free."""
        slot = self.book.take(namespace, page)
        if slot != ABSENT:
            self.book.hold([slot])
        return slot

    def publish(self, slots: Sequence[int], used: int) -> None:
        """Filled slots become visible, and their fillers let go."""
        for slot in slots:
            self.book.publish(slot, used)
        self.book.unhold(slots)
        if len(slots):
            self._on_change(Change(Tier.HOST, True, self.book.told(slots)))

    def abandon(self, slots: Sequence[int]) -> None:
        """Fillers give their slots up."""
        for slot in slots:
            self.book.abandon(slot)
        self.book.unhold(slots)

    def remove(self, slots: Sequence[int]) -> None:
        """Pages become invisible at once; held slots are free with their last hold."""
        if len(slots):
            self._on_change(Change(Tier.HOST, False, self.book.remove(slots)))

    def residency(self) -> Known:
        """All live pages."""
        return Known(*self.book.residency())

    def usage(self) -> Usage:
        """What it holds now."""
        used = self.book.taken * self._slot_bytes
        return Usage(len(self.book), used, self.book.capacity * self._slot_bytes)
