"""`hpkv cache` on a folder of the `ssd` tier."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cache.errors import BusyError, FolderError
from cache.maintenance import Checked, Maintenance, Part, Stored
from cache.memory import allocate
from cache.record import HEADER_BYTES, Header, Verdict, parse
from cache.tiers.ssd.device import Device
from cache.tiers.ssd.folder import Folder, empty, owner_of, physical, try_seat
from cache.tiers.ssd.records import Records, slot_bytes
from cache.tiers.ssd.table import Owner, Row, Table
from cache.tiers.ssd.uses import Uses


class _Shelf(NamedTuple):
    """A sub-folder with pages that can be used, opened."""

    path: Path
    owner: Owner
    table: Table
    pages: Device

    def close(self) -> None:
        self.table.close()
        self.pages.close()

    def stored(self, row: Row) -> Stored:
        return Stored(self.path.name, row.namespace, row.page, slot_bytes(self.owner.page_bytes))

    def remove(self, row: Row) -> None:
        """Clear the entry, then give the disk space back."""
        self.table.clear(row.slot)
        self._punch(row.slot)

    def compact(self) -> None:
        """Give back the disk space of slots in which nothing lies."""
        slots = self.pages.size() // slot_bytes(self.owner.page_bytes)
        for slot in set(range(slots)).difference(row.slot for row in self.table.rows()):
            self._punch(slot)

    def _punch(self, slot: int) -> None:
        size = slot_bytes(self.owner.page_bytes)
        self.pages.punch(slot * size, size)


class SsdMaintenance(Maintenance):
    """A cache folder, seen from outside."""

    def __init__(self, path: Path) -> None:
        self._folder = Folder.open(path)

    def parts(self) -> list[Part]:
        """The sub-folders."""
        living = self._folder.living()
        return [self._part(path, path in living) for path in self._folder.seats()]

    def pages(self) -> Iterator[Stored]:  # noqa: D102
        for shelf in self._shelves(writable=False):
            yield from map(shelf.stored, _newest(shelf.table))

    def verify(self) -> Iterator[Checked]:  # noqa: D102
        for shelf in self._shelves(writable=False):
            records = Records(shelf.pages, shelf.owner.page_bytes)
            into = allocate(shelf.owner.page_bytes)
            for row in shelf.table.rows():
                verdict = self._verify(shelf, records, row, into)
                if verdict is not None:
                    yield Checked(shelf.stored(row), verdict)

    def collect(self, most_bytes: int | None, older_than: float | None) -> Iterator[Stored]:  # noqa: D102
        self._empty_unusable()
        before = None if older_than is None else time.time() - older_than
        if before is not None:
            yield from self._remove(lambda shelf, row: _written(shelf, row) < before)
        if most_bytes is not None:
            yield from self._trim(most_bytes)

    def clear(self, tenant: int | None) -> Iterator[int]:
        """Without a tenant, living processes follow within a second; one tenant's pages must be at rest."""
        if tenant is None:
            count = sum(1 for _ in self.pages())
            with self._folder.locked():
                self._folder.bump()
            self._empty_unusable()
            yield count
            return
        busy = sorted(path.name for path in self._folder.living())
        if busy:
            raise BusyError(
                f"sub-folders {', '.join(busy)} are written by living processes: "
                "stop them, or clear the tenant through each engine's agent"
            )
        yield from (1 for _ in self._remove(lambda shelf, row: row.page.tenant == tenant))
        for shelf in self._shelves(writable=True):
            shelf.compact()  # a slot whose entry is damaged, or was never written, may hold theirs

    def _owner(self, path: Path) -> Owner | None:
        """Whose pages lie in a sub-folder; None when nobody could read any."""
        owner = owner_of(path)
        usable = owner is not None and owner.generation == self._folder.generation
        return owner if usable and (path / "pages").is_file() else None

    def _part(self, path: Path, in_use: bool) -> Part:
        owner = self._owner(path)
        if owner is None:
            return Part(path.name, b"", 0, 0, physical(path), in_use)
        table = Table(Device(path / "table", writable=False))
        count = sum(1 for _ in _newest(table))
        table.close()
        return Part(path.name, owner.base, owner.page_bytes, count, physical(path), in_use)

    def _shelves(self, writable: bool) -> Iterator[_Shelf]:
        """The sub-folders with pages that can be used: all, or those that can be locked."""
        for path in self._folder.seats():
            seat = try_seat(path) if writable else None
            if writable and seat is None:
                continue
            try:
                owner = self._owner(path)
                if owner is not None:
                    yield from self._opened(path, owner, writable)
            finally:
                if seat is not None:
                    seat.release()

    def _opened(self, path: Path, owner: Owner, writable: bool) -> Iterator[_Shelf]:
        table = Table(Device(path / "table", writable=writable))
        shelf = _Shelf(path, owner, table, Device(path / "pages", direct=True, writable=writable))
        try:
            yield shelf
        finally:
            shelf.close()

    def _verify(self, shelf: _Shelf, records: Records, row: Row, into: memoryview) -> Verdict | None:
        """Check a page; None if it was replaced meanwhile."""
        try:
            verdict = records.read(row.slot, row.namespace, row.page.key, [into], shelf.owner.generation)
        except OSError:
            verdict = Verdict.LENGTH
        return verdict if verdict is Verdict.WHOLE or shelf.table.row(row.slot) == row else None

    def _remove(self, chosen: Callable[[_Shelf, Row], bool]) -> Iterator[Stored]:
        for shelf in self._shelves(writable=True):
            for row in shelf.table.rows():
                if chosen(shelf, row):
                    shelf.remove(row)
                    yield shelf.stored(row)

    def _trim(self, most_bytes: int) -> Iterator[Stored]:
        """Give back idle slots, then remove pages at rest, least recently used first, down to a size."""
        for shelf in self._shelves(writable=True):
            used = _used(shelf)
            if self._folder.physical() > most_bytes:
                shelf.compact()
            for row in sorted(shelf.table.rows(), key=lambda row: (used(row), -row.page.end_token)):
                if self._folder.physical() <= most_bytes:
                    return
                shelf.remove(row)
                yield shelf.stored(row)
            empty(shelf.path)
        if self._folder.physical() > most_bytes:
            raise FolderError(
                f"{self._folder.path} still takes {self._folder.physical()} bytes: living processes write "
                "the rest; stop them, or give them a smaller cap"
            )

    def _empty_unusable(self) -> None:
        """Give up sub-folders whose pages nobody could read any more."""
        with self._folder.locked():
            for path in self._folder.seats():
                seat = try_seat(path) if self._owner(path) is None else None
                if seat is not None:
                    empty(path)
                    seat.release()


def _newest(table: Table) -> Iterator[Row]:
    """The rows, without those that a later record of the same page replaced."""
    newest: dict[tuple[bytes, bytes], Row] = {}
    for row in table.rows():
        name = row.namespace, row.page.key
        if name not in newest or newest[name].sequence < row.sequence:
            newest[name] = row
    return iter(newest.values())


def _used(shelf: _Shelf) -> Callable[[Row], int]:
    """When a row's page was used last, as its last owner remembered it."""
    path = shelf.path / "used"
    if not path.is_file():
        return lambda row: row.used
    uses = Uses(Device(path, writable=False))
    kept = uses.read(shelf.pages.size() // slot_bytes(shelf.owner.page_bytes)).tolist()
    uses.close()
    return lambda row: max(row.used, kept[row.slot] if row.slot < len(kept) else 0)


def _written(shelf: _Shelf, row: Row) -> float:
    header = allocate(HEADER_BYTES)
    shelf.pages.read(row.slot * slot_bytes(shelf.owner.page_bytes), [header])
    found: Header | None = parse(header)[1]
    return 0.0 if found is None else float(found.stamp.written)
