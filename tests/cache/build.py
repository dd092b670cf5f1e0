"""Small hierarchies for tests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cache.economics import Priors
from cache.hierarchy import Hierarchy
from cache.keys import Namespace
from cache.memory import allocate
from cache.plan import Plan
from cache.policies import Through, WritePolicy
from cache.state import Level, Settings
from cache.testing import BASE, PAGE_BYTES, SPACE, content, key, page, pages
from cache.tickets import Progress, Ticket
from cache.tiers.base import Store, Tier
from cache.tiers.host import Host
from cache.tiers.slots import ABSENT
from cache.tiers.ssd import Limits, Ssd
from tests.cache.faults import Disk

SLOW_PREFILL = Priors(prefill_tokens_per_second=10.0)
"""Recomputing is so slow that everything is worth loading."""


@dataclass
class Rig:
    """A hierarchy, its parts, and the disk under it."""

    tiers: Hierarchy
    host: Host | None
    ssd: Ssd
    disk: Disk

    def store(self, start: int, stop: int, tenant: int = 0, space: Namespace = SPACE) -> int:
        return self.tiers.store(space, pages(start, stop, tenant), [[content(n)] for n in range(start, stop)])

    def plan(self, start: int, stop: int, computed: int = 0) -> Plan:
        return self.tiers.plan(self.tiers.match(SPACE, keys(start, stop)), computed)

    def load(self, start: int, stop: int, seconds: float = 5.0, prefetch: bool = False) -> Ticket:
        plan = self.tiers.plan(self.tiers.match(SPACE, keys(start, stop)), prefetch=prefetch)
        wanted = pages(start + plan.start, start + plan.cut)
        return (
            self.tiers.prefetch(plan, wanted, seconds) if prefetch else self.tiers.load(plan, wanted, seconds)
        )

    def loaded(self, start: int, stop: int) -> Progress:
        """Load, check the bytes, let go."""
        ticket = self.load(start, stop)
        progress = ticket.wait(5)
        self.check(start, start + progress.ready)
        ticket.release()
        return progress

    def check(self, start: int, stop: int) -> None:
        """These pages are in `host`, byte for byte."""
        assert self.host is not None
        for number, slot in zip(range(start, stop), self.tiers.slots(SPACE, keys(start, stop)), strict=True):
            assert slot != ABSENT, f"page {number} isn't in host"
            assert self.host.page(slot) == content(number), f"page {number} is wrong"

    def where(self, start: int, stop: int) -> list[tuple[Tier, int]]:
        """The match, as (tier, pages)."""
        spans = self.tiers.match(SPACE, keys(start, stop)).spans
        return [(span.tier, span.stop - span.start) for span in spans]

    def drop_host(self) -> None:
        assert self.tiers.drain(5)
        self.tiers.clear(Tier.HOST)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never came to that"
        time.sleep(0.002)


def keys(start: int, stop: int) -> list[bytes]:
    return [key(number) for number in range(start, stop)]


def rig(
    folder: Path,
    slots: int = 16,
    write: WritePolicy | None = None,
    threshold: int = 16,
    cap: int = 4 << 20,
    disk: Disk | None = None,
    more: Sequence[Store] = (),
    priors: Priors = SLOW_PREFILL,
    direct: bool = True,
) -> Rig:
    """`host` of so many slots (none: 0) over an `ssd`."""
    disk = disk or Disk()
    host = Host(allocate(slots * PAGE_BYTES), PAGE_BYTES) if slots else None
    limits = Limits(cap=cap, free_floor=0)
    ssd = Ssd(folder, BASE.fingerprint, PAGE_BYTES, limits, opener=disk.open, direct=direct)
    settings = Settings(
        page_tokens=16,
        page_bytes=PAGE_BYTES,
        threshold=threshold,
        write=write or Through(),
        priors=priors,
        hit_seconds=1.0,
    )
    levels = [Level(ssd), *(Level(store) for store in more)]
    return Rig(Hierarchy(settings, host, levels), host, ssd, disk)


__all__ = ["Rig", "keys", "page", "rig", "wait_for"]
