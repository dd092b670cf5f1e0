"""The contract of every tier below `host`: `ssd` here, and each store that several machines share.

To write a new tier: subclass `Store`, run `cache.testing.StoreContract` against it, and list it
in the hierarchy's `Level`s. Everything else (threads, deadlines, policies, statistics) is around it, not in
it.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cache.keys import Namespace, Page
from cache.memory import Parts


class Tier(enum.Enum):
    """Where a page can lie, beside the engine's own `gpu`."""

    HOST = "host"
    SSD = "ssd"
    SHARED = "shared"


class Outcome(enum.Enum):
    """How a read or write of one page ended; `whole` tells whether the caller has what it wanted."""

    DONE = "done"
    THERE = "there"
    """A write found the page there already, and wrote nothing."""
    MISSING = "missing"
    """Not there (any more)."""
    DAMAGED = "damaged"
    """There, but failed a check; it has been removed."""
    FAILED = "failed"
    """The device or the server failed or refused."""
    FULL = "full"
    """No room; a write was dropped."""
    DROPPED = "dropped"
    """Nobody wanted it any more, or too much was waiting: it wasn't tried."""

    @property
    def whole(self) -> bool:
        """Whether the page was read, or lies in the store now."""
        return self is Outcome.DONE or self is Outcome.THERE


class Read(NamedTuple):
    """One page to read."""

    key: bytes
    into: Parts
    """Writable buffers of the namespace's page size over all parts.

    What they hold after a failure is undefined.
    """


class Write(NamedTuple):
    """One page to write."""

    page: Page
    parts: Parts
    used: int = 0
    """Logical time of the call that stored the page; pages stored together share it, so that a prefix
    outlives what extends it. Stores without an order of their own ignore it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tier holds."""

    pages: int
    bytes: int
    """Physical bytes, overheads included."""
    capacity: int
    """The most bytes it may hold; 0 when that is decided elsewhere."""
    evictions: int = 0
    """Pages evicted since it was opened."""
    available: bool = True
    """Whether it answers; while it doesn't, all is a miss."""


class Change(NamedTuple):
    """Pages of one tier that came or went."""

    tier: Tier
    stored: bool
    pages: Sequence[tuple[int, int]]
    """(prefix key, end token) of each."""


OnChange = Callable[[Change], None]


class Store(ABC):
    """Pages by (namespace, key), safe to call from many threads at once.

    Nothing here raises for what a disk, a network or another process does: the outcome says it. Only set-up
    raises (`cache.errors`). A page is visible only when it is whole, and every read is checked.
    """

    tier: Tier
    remote: bool = False
    """Whether `find` may leave this process. Then it is called on its own thread, with a deadline."""
    batch: int = 1
    """The most pages that one `read` or `write` should be given."""

    @abstractmethod
    def find(self, namespace: Namespace, keys: Sequence[bytes]) -> Sequence[bool]:
        """Whether each page is there: exact, or a hint that a read corrects. Looking is not using.

        The keys come in a prompt's order. A remote store may leave out what comes after the first page that
        is missing: no match reaches it.
        """

    @abstractmethod
    def read(self, namespace: Namespace, reads: Sequence[Read]) -> Sequence[Outcome]:
        """Read and check pages into the callers' buffers; blocks. What fails a check is removed."""

    @abstractmethod
    def write(self, namespace: Namespace, writes: Sequence[Write]) -> Sequence[Outcome]:
        """Write pages, evicting others if need be; blocks. A page that is there already is THERE at once."""

    @abstractmethod
    def clear(self, tenant: int | None = None) -> int:
        """Remove one tenant's pages, or everything, bumping the generation; returns how many.

        Raises FolderError when the device refuses: the caller must know that pages may still be there.
        """

    @abstractmethod
    def usage(self) -> Usage:
        """What it holds now, as far as it knows; doesn't block."""

    def listen(self, on_change: OnChange) -> None:  # noqa: B027 - a store may have nothing to tell
        """Report changes from now on, from any thread. Called once, before the store is used."""

    def tend(self) -> None:  # noqa: B027 - a store may need no upkeep
        """Upkeep, about once a second, on a thread of its own; may block."""

    def close(self) -> None:  # noqa: B027 - a store may hold nothing
        """Give back threads, locks and descriptors. Doesn't wait for a device that hangs."""


@runtime_checkable
class Ordered(Protocol):
    """A store with its own eviction order, which the hierarchy steers; none of this blocks."""

    def touch(self, namespace: Namespace, keys: Sequence[bytes], used: int) -> None:
        """The pages were used by one call at logical time `used`."""

    def hold(self, namespace: Namespace, keys: Sequence[bytes]) -> "Hold":
        """Keep those of the pages that are there from eviction until the hold is dropped."""

    def newest(self) -> int:
        """The latest logical time it knows: a restart goes on from there."""


class Hold(ABC):
    """Pages kept from eviction."""

    @abstractmethod
    def drop(self) -> None:
        """Let them go; more than once is harmless."""


class Known(NamedTuple):
    """Prefix keys and end tokens of live pages, in one order."""

    prefix_keys: NDArray[np.uint64]
    end_tokens: NDArray[np.uint32]


@runtime_checkable
class Listed(Protocol):
    """A store that can tell its residency from memory."""

    def residency(self) -> Known:
        """All live pages; of a store with other writers, those that this process has written lately."""
