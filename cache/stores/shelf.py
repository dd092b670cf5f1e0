"""What upkeep and the commands need of a store: its things by name, whatever they lie on."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Missing(Exception):
    """Nothing has this name."""


class Entry(NamedTuple):
    """A thing as a listing shows it."""

    name: str
    """Relative to the store's root: of a record, see `cache.stores.names`."""
    bytes: int
    used: float
    """Seconds since 1970, by the store's clock: when it was used last, or written if the store can't tell."""


class Blob(NamedTuple):
    """A thing as it was read."""

    data: bytes
    modified: float
    """Seconds since 1970, by the store's clock."""
    version: str
    """Differs from that of any other content under the same name."""


NEW = ""
"""The version of what isn't there yet."""

DRAFT = re.compile(r"(?:[^/]+/)*\.[^/]+\.[0-9a-f]{16}")
"""What is being written is called so, where a store can't write a thing whole in one step."""


class Shelf(ABC):
    """A store's things by name, safe to use from many threads. Methods block and raise CacheError."""

    where: str
    """The store, for messages."""
    width: int = 8
    """How many calls at once are worth while."""
    batch: int = 100
    """How many things to remove with one call."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """All that lies below the root, in no order. What comes or goes meanwhile may be in it or not."""

    @abstractmethod
    def get(self, name: str, size: int | None = None) -> Blob:
        """Read a thing, or its first `size` bytes. Raises Missing."""

    @abstractmethod
    def put(self, name: str, data: bytes, over: str) -> bool:
        """Write a small thing whole, if what has its name is of version `over`; False if it isn't."""

    @abstractmethod
    def remove(self, names: Sequence[str]) -> list[bool]:
        """Remove things; whether each was there."""

    @abstractmethod
    def now(self) -> float:
        """The store's clock, seconds since 1970."""

    def tidy(self) -> Iterator[None]:
        """Remove empty folders of ours, a few at each step."""
        return iter(())
