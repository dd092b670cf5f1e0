"""What the parts of the hierarchy share, and the one lock over it."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cache.economics import Costs, Priors
from cache.errors import SettingsError
from cache.leases import Leases
from cache.policies import Admission, Always, Through, WritePolicy
from cache.residency import Residency
from cache.statistics import Statistics, TierCounts
from cache.tickets import Ticket
from cache.tiers.base import Ordered, Store, Tier
from cache.tiers.host import Host
from cache.tiers.lane import Lane, Width


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a hierarchy behaves; the sizes are its adapter's."""

    page_tokens: int
    page_bytes: int
    threshold: int = 1024
    """Tokens that a load must gain, at the least."""
    load_seconds: float = 5.0
    """After this long a load is given up and recomputed."""
    look_seconds: float = 0.05
    """The longest that a remote look-up may take."""
    hit_seconds: float = 60.0
    """How long pages stay leased to a request that doesn't say when it ends."""
    write: WritePolicy = field(default_factory=Through)
    priors: Priors = field(default_factory=Priors)

    def __post_init__(self) -> None:
        if self.page_tokens < 1 or self.page_bytes < 1 or self.threshold < 0:
            raise SettingsError(
                "page_tokens and page_bytes must be at least 1 and threshold at least 0, not "
                f"{self.page_tokens}, {self.page_bytes} and {self.threshold}"
            )
        if min(self.load_seconds, self.look_seconds, self.hit_seconds) <= 0:
            raise SettingsError("load_seconds, look_seconds and hit_seconds must be positive")


@dataclass(frozen=True, slots=True)
class Level:
    """A store below `host`, and how it is used."""

    store: Store
    admission: Admission = field(default_factory=Always)
    width: Width = field(default_factory=Width)


class State:
    """Everything that the one lock guards. The lock is never held over I/O or a copy of a page."""

    def __init__(
        self,
        settings: Settings,
        host: Host | None,
        levels: Sequence[Level],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        tiers = [level.store.tier for level in levels]
        if not tiers and host is None:
            raise SettingsError("a hierarchy needs at least one tier")
        if len(set(tiers)) < len(tiers) or Tier.HOST in tiers:
            raise SettingsError("a hierarchy takes each tier once, from fast to slow")
        if sum(level.store.remote for level in levels) > 1:
            raise SettingsError("a hierarchy takes one remote store at most")
        if host is not None and host.page_bytes != settings.page_bytes:
            raise SettingsError(
                f"host's pages are of {host.page_bytes} bytes, the others of {settings.page_bytes}"
            )
        self.lock = threading.Lock()
        self.now = clock
        self.settings = settings
        self.host = host
        self.levels = {level.store.tier: level for level in levels}
        self.lanes = {tier: Lane(level.store, level.width) for tier, level in self.levels.items()}
        self.residency = Residency()
        for store in (host, *(level.store for level in levels)):
            if store is not None:
                store.listen(self.residency.record)
        self.leases = Leases(host.book if host else None)
        self.statistics = Statistics({tier: TierCounts() for tier in self.tiers})
        widths = {tier: lane.width.readers for tier, lane in self.lanes.items()} | (
            {Tier.HOST: 1} if host else {}
        )
        self.costs = Costs(settings.page_bytes, widths, settings.priors, clock)
        self.tickets: set[Ticket] = set()
        """Those that are running."""
        self.reservations: set[object] = set()
        """Those that haven't been committed."""
        self.writing: set[tuple[Tier, object]] = set()
        """Writes that a store is busy with."""
        self.clears = 0
        """Goes up with each clear: what began before it must not make pages visible after it."""
        self.clean: NDArray[np.bool_] = np.zeros(host.book.capacity if host else 0, np.bool_)
        """Host slots whose page the tiers below have, or didn't want."""
        self.touches: NDArray[np.uint8] = np.zeros(len(self.clean), np.uint8)
        self._uses = itertools.count(1 + max((s.newest() for s in self.ordered.values()), default=0))

    @property
    def tiers(self) -> list[Tier]:
        """All tiers, from fast to slow."""
        return ([Tier.HOST] if self.host else []) + list(self.levels)

    @property
    def ordered(self) -> dict[Tier, Ordered]:
        """The stores with an eviction order of their own."""
        return {tier: level.store for tier, level in self.levels.items() if isinstance(level.store, Ordered)}

    def use(self) -> int:
        """The logical time of one call: all its pages share it."""
        return next(self._uses)

    def make_room(self, count: int, share: float = 1.0) -> None:
        """Evict from `host` until `count` slots are free, as far as leases allow."""
        assert self.host is not None
        victims = self.host.make_room(count, share)
        if not victims:
            return
        counts = self.statistics.tiers[Tier.HOST]
        counts.evictions += len(victims)
        if self.settings.write.before_eviction():
            counts.drops += int((~self.clean[victims]).sum())
        self.host.remove(victims)
