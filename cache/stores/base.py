"""What the shared stores have in common: settings, a root, and whether they can be reached."""

from abc import abstractmethod
from dataclasses import dataclass, field

from cache.errors import SettingsError
from cache.tiers.base import Store, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a store may keep, over all engines that use it; 0: as much as there is room for."""

    cap: int = 0
    """Bytes, overheads included."""
    age: float = 0.0
    """Seconds since a page was used last, as far as the store knows."""

    def __post_init__(self) -> None:
        if self.cap < 0 or self.age < 0:
            raise SettingsError(f"a store's cap and age must be 0 or more, not {self.cap} and {self.age}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this engine uses a store."""

    page_bytes: int
    limits: Limits = field(default_factory=Limits)
    streams: int = 14
    """Reads, and writes, that are under way in a mount at once. Fewer than the lane has threads: when it
    hangs, some are left to say so to all others."""
    look_seconds: float = 1.0
    """The longest that a look-up may take. A hierarchy waits less; a late answer serves the next look-up."""
    io_seconds: float = 5.0
    """A read or write that takes longer hangs: the store counts as out of reach until it comes back."""

    def __post_init__(self) -> None:
        if self.page_bytes < 1:
            raise SettingsError(f"a store's pages must have at least one byte, not {self.page_bytes}")
        if self.streams < 1:
            raise SettingsError(f"a store needs at least one stream, not {self.streams}")
        if min(self.look_seconds, self.io_seconds) <= 0:
            raise SettingsError("a store's look_seconds and io_seconds must be positive")


class SharedStore(Store):
    """A store that many engines use at once.

    Its keys come in a prompt's order, and a page is of use only when all before it are there. So `find` may
    leave out what comes after the first page that is missing, and it may take a page for present because one
    behind it is (see `cache.stores.search`).
    """

    tier = Tier.SHARED
    remote = True
    store_id: str
    """Random, made with the store: engines with equal ids share their pages."""

    @property
    @abstractmethod
    def available(self) -> bool:
        """Whether it answers. While it doesn't, all is a miss at once, and it is tried again and again."""
