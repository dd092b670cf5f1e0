"""A shared store of whole records by name: all but the way to the bytes."""

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from cache.errors import CacheError
from cache.keys import Namespace, Page
from cache.memory import total
from cache.stores import root
from cache.stores.base import Settings, SharedStore
from cache.stores.guard import FAULTS, Call, Guard, Unavailable
from cache.stores.maintenance import StoreMaintenance
from cache.stores.names import name_of
from cache.stores.presence import Hint, Presence
from cache.stores.search import leading
from cache.stores.shelf import Shelf
from cache.stores.upkeep import Upkeep
from cache.stores.written import Written
from cache.tiers.base import Change, Known, OnChange, Outcome, Read, Usage, Write

logger = logging.getLogger(__name__)


class Saved(NamedTuple):
    """How the write of one page ended."""

    outcome: Outcome
    new: bool
    """It wasn't there before."""


class RecordStore(SharedStore):
    """Finds, reads and writes records; a kind adds how to look, fetch and save.

    Those three block, raise nothing, and go through `self.guard`.
    """

    watch_seconds: float = 0.0
    """The least time between two questions whether somebody has cleared it."""

    def __init__(
        self,
        shelf: Shelf,
        settings: Settings,
        kind: str,
        hanging: float,
        at_once: int,
        maintenance: StoreMaintenance | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        """Open the store, making it if it is new. Raises CacheError.

        A call hangs after `hanging` seconds; so many reads, and writes, are under way at once.
        """
        self._root = root.claim(shelf, kind)
        self.store_id = self._root.store_id
        self.settings = settings
        self.shelf = shelf
        self.guard = Guard(shelf.where, hanging, at_once)
        self._maintenance = maintenance or StoreMaintenance(shelf, kind)
        self._upkeep = upkeep or Upkeep(shelf, settings.limits, self._maintenance.generation)
        self._kind = kind
        self._presence = Presence()
        self._written = Written()
        self._watch_after = 0.0
        self._clears = 0
        self._own_pages = self._own_bytes = 0
        self._surveys = 0
        self._told_unwritable = self._told_uncollected = False
        self._lock = threading.Lock()
        self._on_change: OnChange = lambda change: None

    # -- what a kind adds -------------------------------------------------------------------------

    @abstractmethod
    def look(
        self, generation: int, namespace: Namespace, keys: Sequence[bytes], deadline: float
    ) -> Sequence[Hint]:
        """Which of the pages are there, known by `deadline` (time.monotonic); else UNKNOWN."""

    @abstractmethod
    def fetch(self, generation: int, namespace: Namespace, reads: Sequence[Read]) -> Sequence[Outcome]:
        """Read and check records; remove what is damaged."""

    @abstractmethod
    def save(self, generation: int, namespace: Namespace, writes: Sequence[Write]) -> Sequence[Saved]:
        """Write records that aren't there, each whole or not at all."""

    @abstractmethod
    def record_bytes(self) -> int:
        """What a page takes."""

    # -- the contract -----------------------------------------------------------------------------

    @property
    def available(self) -> bool:  # noqa: D102
        return self.guard.available

    def find(self, namespace: Namespace, keys: Sequence[bytes]) -> list[bool]:
        """The leading pages, by what is remembered and few questions (see `cache.stores.search`)."""
        if not self.available:
            return [False] * len(keys)
        generation = self._root.generation
        deadline = time.monotonic() + self.settings.look_seconds

        def probe(places: list[int]) -> list[bool]:
            wanted = [keys[place] for place in places]
            hints = self.look(generation, namespace, wanted, deadline)
            for hint in (Hint.THERE, Hint.GONE):
                seen = [key for key, said in zip(wanted, hints, strict=True) if said is hint]
                self._presence.saw(namespace, seen, hint is Hint.THERE)
            return [hint is Hint.THERE for hint in hints]

        count = leading(self._presence.recall(namespace, keys), probe)
        return [True] * count + [False] * (len(keys) - count)

    def read(self, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:  # noqa: D102
        outcomes = list(self.fetch(self._root.generation, namespace, reads))
        for read, outcome in zip(reads, outcomes, strict=True):
            if outcome is not Outcome.FAILED:
                self._presence.saw(namespace, [read.key], outcome is Outcome.DONE)
        return outcomes

    def write(self, namespace: Namespace, writes: Sequence[Write]) -> list[Outcome]:  # noqa: D102
        clears, generation = self._clears, self._root.generation
        fits = [self._fits(write) for write in writes]
        wanted = [write for write, fit in zip(writes, fits, strict=True) if fit]
        saved = self.save(generation, namespace, wanted)
        if self._clears != clears:
            saved = self._take_back(generation, namespace, wanted)
        self._took(namespace, [write.page for write, one in zip(wanted, saved, strict=True) if one.new])
        ended = iter(saved)
        return [_told(next(ended)) if fit else Outcome.FAILED for fit in fits]

    def clear(self, tenant: int | None = None) -> int:
        """Every engine follows within seconds. What others write of the tenant meanwhile may stay."""
        self._clears += 1
        try:
            if tenant is None:
                return sum(self._maintenance.clear(None))
            gone = list(self._maintenance.clear_tenant(tenant))
        finally:
            self._clears += 1
            self._follow()
        for record in gone:
            self._presence.saw(record.name.namespace, [record.name.key], there=False)
        self._tell([record.header.page for record in gone], stored=False)
        with self._lock:
            self._own_pages -= len(gone)
            self._own_bytes -= sum(record.entry.bytes for record in gone)
        return len(gone)

    def usage(self) -> Usage:
        """What was counted last, by whichever engine, and what this one has written since."""
        with self._lock:
            pages, size = self._upkeep.survey
            pages, size = max(pages + self._own_pages, 0), max(size + self._own_bytes, 0)
        evictions = self._upkeep.evictions
        return Usage(pages, size, self.settings.limits.cap, evictions, self.available)

    def residency(self) -> Known:
        """The newest pages that this engine has written; what others have written, they tell."""
        return self._written.known()

    def listen(self, on_change: OnChange) -> None:  # noqa: D102
        self._on_change = on_change

    def tend(self) -> None:
        """See whether the store answers and has been cleared, and collect for a moment."""
        now = time.monotonic()
        if now < self._watch_after:
            return
        self._watch_after = now + self.watch_seconds
        try:
            with self.guard.call(Call.TEND):
                self._follow()
                self.guard.fine()
                self._collect()
        except Unavailable:
            return
        except CacheError as error:
            if self.available:
                logger.warning("%s", error)
            self.guard.fault(FAULTS)

    # -- the rest ---------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Go on under the store's generation, whoever began it."""
        found = root.load(self.shelf, self._kind)
        if found != self._root:
            self._root = found
            self.store_id = found.store_id
            self._presence.forget()
            self._written.forget()
            with self._lock:
                self._own_pages, self._own_bytes = -self._upkeep.survey.pages, -self._upkeep.survey.bytes

    def _collect(self) -> None:
        """Whoever can't, since they may only read or there is no room, can read all the same."""
        try:
            self._upkeep.run()
        except CacheError as error:
            if not self._told_uncollected:
                logger.warning("%s: collecting failed, will try again: %s", self.shelf.where, error)
            self._told_uncollected = True
        else:
            self._told_uncollected = False
            self._counted()

    def _unwritable(self, why: str) -> Saved:
        """It refuses writes, but may well be read."""
        with self._lock:  # all writers find out together
            told, self._told_unwritable = self._told_unwritable, True
        if not told:
            logger.warning("%s can't be written (%s): it is only read", self.shelf.where, why)
        return Saved(Outcome.FAILED, False)

    def _fits(self, write: Write) -> bool:
        fits = write.page.recordable and total(write.parts) == self.settings.page_bytes
        if not fits:
            logger.error(
                "%s: a page was offered that isn't of the store's page size, or whose key or numbers have no "
                "room in a record",
                self.shelf.where,
            )
        return fits

    def _take_back(self, generation: int, namespace: Namespace, writes: Sequence[Write]) -> list[Saved]:
        """What was written while the store was cleared must not stay."""
        names = [name_of(generation, namespace, write.page.key) for write in writes]
        try:
            self.shelf.remove(names)
        except CacheError as error:
            logger.warning("%s: pages written during a clear may be left: %s", self.shelf.where, error)
        return [Saved(Outcome.DROPPED, False)] * len(writes)

    def _took(self, namespace: Namespace, pages: Sequence[Page]) -> None:
        """These pages are there now."""
        self._presence.saw(namespace, [page.key for page in pages], there=True)
        self._tell(pages, stored=True)
        with self._lock:
            self._own_pages += len(pages)
            self._own_bytes += len(pages) * self.record_bytes()

    def _counted(self) -> None:
        """A new survey has what this engine had written until then."""
        with self._lock:
            if self._surveys != self._upkeep.surveys:
                self._surveys = self._upkeep.surveys
                self._own_pages = self._own_bytes = 0

    def _tell(self, pages: Sequence[Page], stored: bool) -> None:
        if pages:
            told = [(page.prefix_key, page.end_token) for page in pages]
            (self._written.add if stored else self._written.remove)(told)
            self._on_change(Change(self.tier, stored, told))


def _told(saved: Saved) -> Outcome:
    return Outcome.THERE if saved.outcome is Outcome.DONE and not saved.new else saved.outcome
