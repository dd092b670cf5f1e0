"""The `ssd` store: an index in memory over slots on a disk."""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cache.errors import FolderError, SettingsError, refusal
from cache.eviction import Eviction, Lru
from cache.keys import KEY_BYTES, Namespace, Page
from cache.memory import BLOCK, Parts, total
from cache.record import Stamp, Verdict
from cache.tiers.base import (
    Change,
    Hold,
    Known,
    OnChange,
    Outcome,
    Read,
    Store,
    Tier,
    Usage,
    Write,
)
from cache.tiers.slots import ABSENT, Book, Recalled
from cache.tiers.ssd.device import Device, Opener
from cache.tiers.ssd.folder import Folder, Limits, read_mark
from cache.tiers.ssd.records import Records, slot_bytes
from cache.tiers.ssd.space import Files, Space
from cache.tiers.ssd.table import Owner, Row, Table
from cache.tiers.ssd.uses import Uses

logger = logging.getLogger(__name__)

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_GROW_AGAIN_SECONDS = 1.0
_KEEP_USED_SECONDS = 10.0
_TELL_SECONDS = 60.0
"""Between two lines of the log about what failed: on a disk that fails, each page does."""


class Ssd(Store):
    """One process's sub-folder of a cache folder (see `cache.tiers.ssd.folder`).

    Its lock guards the book alone and is never held over I/O, so that looking never waits for a disk.
    """

    tier = Tier.SSD

    def __init__(
        self,
        path: Path,
        base: bytes,
        page_bytes: int,
        limits: Limits,
        *,
        direct: bool = True,
        opener: Opener = Device,
        eviction: Callable[[int], Eviction] = Lru,
    ) -> None:
        """Take a sub-folder of `path` and find the pages of `base` (16 bytes) in it again.

        Raises FolderError when the folder can't be used, SettingsError when no page fits.
        """
        if page_bytes < 1 or limits.cap < 2 * slot_bytes(page_bytes) + 4 * BLOCK:
            raise SettingsError(
                f"ssd: a cap of {limits.cap} bytes has no room for two pages of {page_bytes} bytes"
            )
        self._folder = Folder.create(path)
        owner = Owner(base, page_bytes, self._folder.generation)
        self._seat = self._folder.take(owner)
        try:
            self._files = _open(self._seat.path, direct, opener)
            self._slot = slot_bytes(page_bytes)
            self._records = Records(self._files.pages, page_bytes)
            self._space = Space(self._folder, self._seat, limits, owner, self._files)
            self._book = Book(self._space.capacity, opened=0, eviction=eviction)
            self._recover(owner)
        except OSError as error:
            self._seat.release()
            raise refusal(path, error) from error
        self._limits = limits
        self._page_bytes = page_bytes
        self._lock = threading.Lock()
        self._growing = threading.Lock()
        self._grow_after = 0.0
        self._keep_after = time.monotonic() + _KEEP_USED_SECONDS
        self._clears = 0
        self._followed = owner.generation
        self._evictions = 0
        self._closed = False
        self._abandoned = False
        self._tell_after: dict[str, float] = {}
        self._on_change: OnChange = lambda change: None

    # -- the contract -----------------------------------------------------------------------------

    def find(self, namespace: Namespace, keys: Sequence[bytes]) -> list[bool]:
        """Exact, and from memory."""
        return self._book.has(namespace, keys)

    def read(self, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:  # noqa: D102
        return [self._read(namespace, read) for read in reads]

    def write(self, namespace: Namespace, writes: Sequence[Write]) -> list[Outcome]:  # noqa: D102
        return [self._write(namespace, write) for write in writes]

    def clear(self, tenant: int | None = None) -> int:
        """Remove pages and give their disk space back.

        Without a tenant, every process on the folder follows.
        """
        try:
            if tenant is None:
                self._folder.bump()
                return self._follow(self._folder.generation)
            return self._clear_tenant(tenant)
        except OSError as error:
            raise FolderError(f"{self._folder.path} can't be cleared: {error.strerror or error}") from error

    def usage(self) -> Usage:
        """Bytes are those of the slots in use."""
        with self._lock:
            taken = self._book.taken
            return Usage(len(self._book), taken * self._slot, self._limits.cap, self._evictions)

    def listen(self, on_change: OnChange) -> None:  # noqa: D102
        self._on_change = on_change

    def close(self) -> None:
        """Remember the order of use, unlock the sub-folder. Reads and writes must have ended."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._keep_used()
        except OSError as error:
            logger.warning("ssd: the order of use in %s is lost: %s", self._seat.path, error)
        self._files.close()
        self._seat.release()

    # -- order and residency ----------------------------------------------------------------------

    def touch(self, namespace: Namespace, keys: Sequence[bytes], used: int) -> None:
        """The pages were used by one call at logical time `used`."""
        with self._lock:
            self._book.touch(_present(self._book.find(namespace, keys)), used)

    def hold(self, namespace: Namespace, keys: Sequence[bytes]) -> Hold:
        """Keep those of the pages that are there."""
        with self._lock:
            slots = _present(self._book.find(namespace, keys))
            self._book.hold(slots)
        return _Held(self, slots)

    def newest(self) -> int:
        """The latest logical time of any page."""
        with self._lock:
            return int(self._book.used(self._space.slots).max(initial=0))

    def residency(self) -> Known:
        """All live pages."""
        with self._lock:
            return Known(*self._book.residency())

    def audit(self) -> None:
        """Check the book (for tests)."""
        with self._lock:
            self._book.audit()

    # -- upkeep -----------------------------------------------------------------------------------

    def tend(self) -> None:
        """Follow a new generation, give back what is too much, remember the order of use.

        Blocks; call it every second.
        """
        try:
            if not self._seat.ours():
                self._abandon()
                return
            self._abandoned = False
            generation = read_mark(self._folder.path)
            if generation != self._followed:
                self._follow(generation)
            with self._growing:
                self._shrink(self._space.excess())
            if time.monotonic() >= self._keep_after:
                self._keep_after = time.monotonic() + _KEEP_USED_SECONDS
                self._keep_used()
        except (OSError, FolderError) as error:
            self._tell("upkeep", error)

    def _abandon(self) -> None:
        """Nobody will find these pages again: give all their space back."""
        with self._growing:
            if not self._abandoned:  # what is held, or was being written, goes later
                self._abandoned = True
                logger.warning("ssd: %s was removed or moved: its pages are given up", self._seat.path)
            self._shrink(self._space.excess())

    def _shrink(self, excess: int) -> None:
        if excess <= 0:
            return
        count = -(-excess // self._slot)
        with self._lock:
            idle = self._book.free_slots()[:count]  # before any page goes
            victims = self._book.victims(count - len(idle))
            self._drop(victims)
            self._evictions += len(victims)
            slots = idle + victims
            self._book.retire(slots)
        with self._giving_back(slots):
            for slot in slots:  # an evicted page's entry stays until its slot is used again
                self._files.table.clear(slot)

    @contextlib.contextmanager
    def _giving_back(self, retired: Sequence[int]) -> Iterator[None]:
        """Give back retired slots' space, once their entries are cleared; those that keep it are free."""
        try:
            yield
            self._space.give_back(retired)
        finally:
            holes = set(self._space.holes)
            with self._lock:
                self._book.restore(slot for slot in retired if slot not in holes)

    def _follow(self, generation: int) -> int:
        """Everything written so far is void.

        Forget it, give its space back, go on under the new generation.
        """
        with self._growing:
            with self._lock:
                slots = self._book.live()
                self._drop(slots)
                self._clears += 1
                self._folder.generation = generation
                self._space.owner = self._space.owner._replace(generation=generation)
                idle = self._book.free_slots()
                self._book.retire(idle)
            with self._giving_back(idle):
                self._files.table.start(self._space.owner)
                self._files.table.reserve(self._space.slots)
            self._followed = generation
        return len(slots)

    def _clear_tenant(self, tenant: int) -> int:
        with self._growing:
            with self._lock:
                slots = self._book.live(tenant)
                self._drop(slots)
                self._clears += 1
                free = set(self._book.free_slots())
                idle = [slot for slot in slots if slot in free]
                self._book.retire(idle)
            with self._giving_back(idle):
                for slot in {*slots, *self._files.table.slots_of(tenant)}:
                    self._files.table.clear(slot)
        return len(slots)

    def _keep_used(self) -> None:
        with self._lock:
            used = self._book.used(self._space.slots)
        self._files.used.write(used)

    # -- reading ----------------------------------------------------------------------------------

    def _read(self, namespace: Namespace, read: Read) -> Outcome:
        if not self._fits(Page(read.key, 0, 0), read.into):
            return Outcome.FAILED
        with self._lock:
            (slot,) = self._book.find(namespace, [read.key])
            if slot == ABSENT or self._closed:
                return Outcome.MISSING
            self._book.hold([slot])
            generation = self._space.owner.generation
        try:
            verdict = self._records.read(slot, namespace, read.key, read.into, generation)
            outcome = Outcome.DONE if verdict is Verdict.WHOLE else Outcome.DAMAGED
        except OSError as error:
            self._tell("reading slots", error)
            outcome = Outcome.FAILED
        except BaseException:  # buffers that can't be filled: nothing may keep the slot
            self._unhold([slot])
            raise
        with self._lock:
            bad = outcome is not Outcome.DONE and self._book.find(namespace, [read.key]) == [slot]
            if bad:
                self._drop([slot])
        if bad:
            self._forget(slot)
        with self._lock:
            self._book.unhold([slot])
        return outcome

    # -- writing ----------------------------------------------------------------------------------

    def _write(self, namespace: Namespace, write: Write) -> Outcome:
        page = write.page
        if not self._fits(page, write.parts):
            return Outcome.FAILED
        while True:
            with self._lock:
                (slot,) = self._book.find(namespace, [page.key])
                if slot != ABSENT:
                    self._book.touch([slot], write.used)
                    return Outcome.THERE
                if self._closed or self._book.filling(namespace, page.key):
                    return Outcome.DROPPED
                slot = self._book.take(namespace, page)
                clears, generation = self._clears, self._space.owner.generation
            if slot != ABSENT:
                return self._fill(slot, namespace, write, clears, generation)
            if not self._grow() and not self._evict():
                return Outcome.FULL

    def _evict(self) -> bool:
        with self._lock:
            victims = self._book.victims(1)
            self._drop(victims)
            self._evictions += len(victims)
        return bool(victims)

    def _grow(self) -> bool:
        if time.monotonic() < self._grow_after:
            return False
        with self._growing:
            if time.monotonic() < self._grow_after:
                return False
            try:
                growth = self._space.grow()
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    self._tell("growth", error)
                self._grow_after = time.monotonic() + _GROW_AGAIN_SECONDS
                return False
            with self._lock:
                self._book.restore(growth.holes)
                self._book.opened += growth.opened
            if not growth.holes and not growth.opened:
                self._grow_after = time.monotonic() + _GROW_AGAIN_SECONDS
                return False
            return True

    def _fill(self, slot: int, namespace: Namespace, write: Write, clears: int, generation: int) -> Outcome:
        failure = None
        try:
            self._files.table.clear(slot)
            sequence = self._next_sequence()
            stamp = Stamp(generation, sequence, int(time.time()))
            self._records.write(slot, namespace, write.page, write.parts, stamp)
            self._files.table.write(Row(slot, sequence, namespace, write.page, write.used))
        except OSError as error:
            failure = Outcome.FULL if error.errno in _NO_SPACE else Outcome.FAILED
            if failure is Outcome.FAILED:
                self._tell("writing slots", error)
        except BaseException:  # buffers that can't be read: nothing may keep the slot
            with self._lock:
                self._book.abandon(slot)
            raise
        with self._lock:
            void = self._clears != clears
            if failure is None and not void:
                self._book.publish(slot, write.used)
                self._on_change(Change(Tier.SSD, True, self._book.told([slot])))
                return Outcome.DONE
            if failure is not None:
                self._book.abandon(slot, shun=True)
                return failure
        return self._take_back(slot)

    def _take_back(self, slot: int) -> Outcome:
        """What was written while the tier was cleared must not come back with a restart."""
        self._forget(slot)
        with self._lock:
            self._book.abandon(slot)
        return Outcome.DROPPED

    def _forget(self, slot: int) -> None:
        """Clear the entry of a slot that nobody else can take now."""
        try:
            self._files.table.clear(slot)
        except OSError as error:
            self._tell("clearing slots", error)

    def _tell(self, what: str, error: Exception) -> None:
        """Something failed: the statistics count each time, the log has one line now and then."""
        if time.monotonic() >= self._tell_after.get(what, 0.0):
            self._tell_after[what] = time.monotonic() + _TELL_SECONDS
            logger.warning("ssd: %s of %s failed: %s", what, self._seat.path, error)

    def _fits(self, page: Page, parts: Parts) -> bool:
        """Whether a page and its buffers can lie here; a caller that mixes them up loses nothing."""
        if page.recordable and total(parts) == self._page_bytes:
            return True
        logger.error(
            "ssd: %d bytes for a key of %d were asked of slots of %d and keys of at most %d; or a number is "
            "out of its range: prefix key %d, end token %d",
            total(parts),
            len(page.key),
            self._page_bytes,
            KEY_BYTES,
            page.prefix_key,
            page.end_token,
        )
        return False

    # -- the rest ---------------------------------------------------------------------------------

    def _recover(self, owner: Owner) -> None:
        """Find the pages that a process before us left in this sub-folder."""
        self._sequence = 0
        files, space = self._files, self._space
        if files.table.owner() != owner:
            files.pages.truncate(0)
            files.used.clear()
            files.table.start(owner)
            space.slots = 0
            return
        space.fit()
        self._book.opened = space.slots
        self._book.recall(self._found(files.used.read(space.slots)))
        self._book.retire(space.count_holes(self._book.free_slots()))

    def _found(self, used: NDArray[np.uint64]) -> Iterator[Recalled]:
        for found in self._files.table.columns():
            self._sequence = max(self._sequence, int(found.sequences.max(initial=0)))
            found = found.first(int(np.searchsorted(found.slots, self._space.slots)))
            yield found._replace(used=np.maximum(found.used, used[found.slots]))

    def _drop(self, slots: Sequence[int]) -> None:
        """Remove pages from the book and say so; call with the lock held."""
        if slots:
            self._on_change(Change(Tier.SSD, False, self._book.remove(slots)))

    def _unhold(self, slots: Sequence[int]) -> None:
        with self._lock:
            self._book.unhold(slots)

    def _next_sequence(self) -> int:
        with self._lock:
            self._sequence += 1
            return self._sequence


class _Held(Hold):
    def __init__(self, store: Ssd, slots: Sequence[int]) -> None:
        self._store = store
        self._slots = slots

    def drop(self) -> None:
        slots, self._slots = self._slots, []
        self._store._unhold(slots)


def _open(seat: Path, direct: bool, opener: Opener) -> Files:
    return Files(
        opener(seat / "pages", direct),
        Table(opener(seat / "table", False)),
        Uses(opener(seat / "used", False)),
    )


def _present(slots: Sequence[int]) -> list[int]:
    return list(dict.fromkeys(slot for slot in slots if slot != ABSENT))
