"""What `hpkv cache` does to folders and stores, offline or beside living processes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cache.keys import Namespace, Page
from cache.record import Verdict


class Part(NamedTuple):
    """A part of a store with one owner: of a folder, a sub-folder."""

    name: str
    base: bytes
    """Fingerprint of the base namespace; empty when nothing in the part can be used."""
    page_bytes: int
    pages: int
    bytes: int
    """Disk space, overheads included."""
    in_use: bool
    """A living process writes it."""


class Stored(NamedTuple):
    """A page at rest."""

    part: str
    namespace: Namespace
    page: Page
    bytes: int


class Checked(NamedTuple):
    """A page at rest, read and checked."""

    stored: Stored
    verdict: Verdict


class Maintenance(ABC):
    """A folder or store, seen from outside. Methods block and raise CacheError."""

    @abstractmethod
    def parts(self) -> list[Part]:
        """What it is made of."""

    @abstractmethod
    def pages(self) -> Iterator[Stored]:
        """All pages that could be read back."""

    @abstractmethod
    def verify(self) -> Iterator[Checked]:
        """Read and check every byte of every page.

        Changes nothing. Pages that change meanwhile are left out.
        """

    @abstractmethod
    def collect(self, most_bytes: int | None, older_than: float | None) -> Iterator[Stored]:
        """Remove what can't be used, pages older than `older_than` seconds, and others down to `most_bytes`.

        The least recently used go first. What living processes write is left to them. Tells what it removed.
        """

    @abstractmethod
    def clear(self, tenant: int | None) -> Iterator[int]:
        """Remove one tenant's pages, or everything for good; tells how many went, step by step."""


def open_store(target: str) -> Maintenance:
    """The folder or store that a path or URL names. Raises CacheError with what to do when it is none."""
    from cache.stores import open_maintenance
    from cache.stores.posix import is_store
    from cache.tiers.ssd.maintenance import SsdMaintenance

    if "://" in target or is_store(Path(target)):
        return open_maintenance(target)
    return SsdMaintenance(Path(target))
