"""Pins: pages kept because somebody asked for it, within a share of a tier and for a while."""

import time
from collections.abc import Callable
from typing import NamedTuple

from cache.hierarchy import Hierarchy
from cache.keys import Namespace
from cache.leases import Lease
from cache.plan import Match, clip
from cache.tiers.base import Tier
from engine_adapters.errors import AgentRefused
from engine_adapters.settings import PinSettings

Name = tuple[Namespace, bytes]
"""A prompt's namespace and last page."""


class _Pin(NamedTuple):
    lease: Lease
    pages: int
    tenant: int
    until: float


class Kept(NamedTuple):
    """Leading pages that are pinned, and for how long."""

    pages: int
    seconds: float


class Pins:
    """All pins, by prompt. Pages of `shared` can't be kept: a store that others share decides itself."""

    def __init__(
        self, tiers: Hierarchy, settings: PinSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tiers = tiers
        self._settings = settings
        self._clock = clock
        self._pins: dict[Name, _Pin] = {}

    def pin(self, name: Name, match: Match, tenant: int, seconds: float) -> Kept:
        """Keep the leading pages that lie here, as many as there is room for, in place of an earlier pin.

        Raises AgentRefused if there is room for none.
        """
        self.sweep()
        before = self._pins.pop(name, None)
        here = next((span.start for span in match.spans if span.tier is Tier.SHARED), match.pages)
        count = min(here, self._room())
        seconds = min(seconds, self._settings.longest_s)
        if count:
            kept = Match(match.namespace, match.keys[:count], clip(match.spans, 0, count))
            lease = self._tiers.pin(kept, seconds)
            self._pins[name] = _Pin(lease, count, tenant, self._clock() + seconds)
        if before is not None:
            self._tiers.unpin(before.lease)
        if here and not count:
            share = f"{self._settings.host_share:.0%} of {self._bounding().value}"
            raise AgentRefused("too_large", f"pins keep {share} already: unpin something")
        return Kept(count, seconds if count else 0.0)

    def unpin(self, name: Name) -> None:
        """End a pin, if there is one."""
        pin = self._pins.pop(name, None)
        if pin is not None:
            self._tiers.unpin(pin.lease)

    def cleared(self, tenant: int | None) -> None:
        """Pages are about to be removed: end the pins of this tenant, or all."""
        for name, pin in list(self._pins.items()):
            if tenant in (None, pin.tenant):
                self.unpin(name)

    def sweep(self) -> None:
        """Forget those whose time is over."""
        now = self._clock()
        for name, pin in list(self._pins.items()):
            if now >= pin.until:
                self.unpin(name)

    def _bounding(self) -> Tier:
        """The tier of which pins may keep a share: an engine with a host tier of its own lends us none."""
        return Tier.HOST if Tier.HOST in self._tiers.usage() else Tier.SSD

    def _room(self) -> int:
        """Pages that may be pinned beside those that are."""
        bounding = self._tiers.usage().get(self._bounding())
        capacity = bounding.capacity // self._tiers.settings.page_bytes if bounding else 0
        taken = sum(pin.pages for pin in self._pins.values() if not pin.lease.cleared)
        return max(int(capacity * self._settings.host_share) - taken, 0)
