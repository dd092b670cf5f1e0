"""`hpkv cache` on a shared store, also beside living engines; an engine's own `clear` goes the same way."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from cache.errors import BusyError
from cache.keys import Namespace, Page
from cache.maintenance import Checked, Maintenance, Part, Stored
from cache.record import HEADER_BYTES, Header, Verdict, check
from cache.record import parse as parse_header
from cache.stores import root
from cache.stores.collector import collect
from cache.stores.lease import Lease, Survey
from cache.stores.names import Name, parse
from cache.stores.parallel import in_order
from cache.stores.shelf import DRAFT, Entry, Missing, Shelf

_AT_ONCE = 256
_WRITING_SECONDS = 60.0
"""Nobody writes a page for so long."""


class Record(NamedTuple):
    """A record that could be read back, by its header."""

    entry: Entry
    name: Name
    header: Header

    @property
    def stored(self) -> Stored:
        """As the commands tell it."""
        part = _part(self.name.namespace)
        return Stored(part, self.name.namespace, self.header.page, self.entry.bytes)


class StoreMaintenance(Maintenance):
    """A store, seen from outside."""

    def __init__(self, shelf: Shelf, kind: str) -> None:
        self._shelf = shelf
        self._kind = kind

    def generation(self) -> int:
        """The current one."""
        return root.load(self._shelf, self._kind).generation

    def parts(self) -> list[Part]:
        """The namespaces, and what is left of earlier generations."""
        generation = self.generation()
        counts: dict[Namespace | None, Survey] = defaultdict(Survey)
        for entry in self._shelf.entries():
            name = parse(entry.name)
            if name is not None:
                whose = name.namespace if name.generation == generation else None
                pages, size = counts[whose]
                counts[whose] = Survey(pages + 1, size + entry.bytes)
        return [
            Part(
                _part(space),
                space,
                counts[space].bytes // counts[space].pages - HEADER_BYTES,
                *counts[space],
                False,
            )
            if space
            else Part("cleared", b"", 0, 0, counts[space].bytes, False)
            for space in sorted(counts, key=lambda space: space or b"")
        ]

    def pages(self) -> Iterator[Stored]:  # noqa: D102
        return (record.stored for record in self._records())

    def verify(self) -> Iterator[Checked]:  # noqa: D102
        generation = self.generation()

        def verify(entry: Entry) -> Checked | None:
            return self._verify(entry, generation)

        found = in_order(verify, self._current(generation), self._shelf.width)
        return (checked for checked in found if checked is not None)

    def collect(self, most_bytes: int | None, older_than: float | None) -> Iterator[Stored]:
        """Old pages are those that weren't used for so long, as far as the store knows."""
        lease = Lease(self._shelf)
        if not lease.take(0):
            raise BusyError(
                f"{self._shelf.where} is being collected by another process: try again in a minute"
            )
        survey = Survey()
        for step in collect(self._shelf, self.generation, most_bytes, older_than):
            survey = step.survey
            for entry in step.removed:
                name = parse(entry.name)
                if name is not None:
                    page = Page(name.key, 0, 0)
                    yield Stored(_part(name.namespace), name.namespace, page, entry.bytes)
            if not lease.renew():
                raise BusyError(
                    f"{self._shelf.where}: another process collects now; what it leaves is left to it"
                )
        lease.finish(survey)

    def clear(self, tenant: int | None) -> Iterator[int]:
        """Living engines follow within seconds; of one tenant, what they write meanwhile may stay."""
        if tenant is not None:
            yield from (1 for _ in self.clear_tenant(tenant))
            return
        before = self.generation()
        root.clear(self._shelf, self._kind)
        for step in collect(self._shelf, self.generation, None, None):
            names = (parse(entry.name) for entry in step.removed)
            yield sum(1 for name in names if name is not None and name.generation == before)

    def clear_tenant(self, tenant: int) -> Iterator[Record]:
        """Remove a tenant's pages one by one: reads the header of every page.

        What doesn't tell whose it is may be theirs, and goes, too: records that nobody can read, and what a
        writer has left half written.
        """
        self._remove_drafts()
        looked = in_order(self._look, self._current(self.generation()), self._shelf.width)
        theirs = (
            found
            for found in looked
            if isinstance(found, Entry) or (found is not None and found.header.page.tenant == tenant)
        )
        while batch := list(islice(theirs, _AT_ONCE)):
            names = [found.name if isinstance(found, Entry) else found.entry.name for found in batch]
            for found, was_there in zip(batch, self._shelf.remove(names), strict=True):
                if was_there and isinstance(found, Record):
                    yield found

    def _remove_drafts(self) -> None:
        """Remove what nobody is writing any more."""
        until = self._shelf.now() - _WRITING_SECONDS
        lost = (e.name for e in self._shelf.entries() if DRAFT.fullmatch(e.name) and e.used < until)
        while batch := list(islice(lost, _AT_ONCE)):
            self._shelf.remove(batch)

    def _current(self, generation: int) -> Iterator[Entry]:
        for entry in self._shelf.entries():
            name = parse(entry.name)
            if name is not None and name.generation == generation:
                yield entry

    def _records(self) -> Iterator[Record]:
        looked = in_order(self._look, self._current(self.generation()), self._shelf.width)
        return (found for found in looked if isinstance(found, Record))

    def _look(self, entry: Entry) -> Record | Entry | None:
        """A record; its entry alone if nobody can read it; None if it has gone meanwhile."""
        name = parse(entry.name)
        if entry.bytes < HEADER_BYTES:  # services refuse to give a part of an empty object
            return entry
        try:
            data = self._shelf.get(entry.name, HEADER_BYTES).data
        except Missing:
            return None
        header = parse_header(memoryview(data))[1] if len(data) == HEADER_BYTES else None
        return Record(entry, name, header) if name is not None and header is not None else entry

    def _verify(self, entry: Entry, generation: int) -> Checked | None:
        """Check a page; None if it went meanwhile."""
        name = parse(entry.name)
        assert name is not None
        try:
            data = memoryview(self._shelf.get(entry.name).data)
        except Missing:
            return None
        page = Page(name.key, 0, 0)
        verdict = Verdict.LENGTH
        if len(data) >= HEADER_BYTES:
            verdict, header = parse_header(data[:HEADER_BYTES])
            if header is not None:
                page = header.page
                payload = data[HEADER_BYTES : HEADER_BYTES + header.length]
                verdict = check(data[:HEADER_BYTES], [payload], name.namespace, name.key, generation)
        return Checked(Stored(_part(name.namespace), name.namespace, page, entry.bytes), verdict)


def _part(namespace: Namespace) -> str:
    return namespace.hex()[:8]
