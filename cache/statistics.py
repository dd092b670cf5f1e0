"""Counters, by tier. They only grow; a reader takes differences."""

import bisect
from dataclasses import dataclass, field, replace

from cache.plan import Match, Plan, Reason, clip
from cache.tiers.base import Outcome, Tier

BOUNDS = tuple(0.0001 * 2**power for power in range(18))
"""Upper bounds of the latency buckets, in seconds: 0.1 ms to 13 s; the last bucket has none."""


@dataclass(slots=True)
class Latencies:
    """A histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect.bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> "Latencies":
        """A copy that stays as it is."""
        return Latencies(self.counts.copy(), self.seconds)


@dataclass(slots=True)
class TierCounts:
    """What happened in one tier, in pages unless a name says bytes."""

    hits: int = 0
    """Found here when a request was planned, beyond what the engine had."""
    loaded: int = 0
    bytes_loaded: int = 0
    stored: int = 0
    bytes_stored: int = 0
    evictions: int = 0
    drops: int = 0
    """Stores that didn't happen: no room, or too many waiting."""
    damaged: int = 0
    failed: int = 0
    """Reads and writes that the device refused."""
    expired: int = 0
    """Loads that weren't there by their deadline."""
    load_latencies: Latencies = field(default_factory=Latencies)
    store_latencies: Latencies = field(default_factory=Latencies)

    def copy(self) -> "TierCounts":
        """A copy that stays as it is."""
        return replace(
            self, load_latencies=self.load_latencies.copy(), store_latencies=self.store_latencies.copy()
        )


@dataclass(slots=True)
class Statistics:
    """What happened in all tiers. The hierarchy changes its own under its lock, and hands out copies."""

    tiers: dict[Tier, TierCounts] = field(default_factory=dict)
    misses: int = 0
    """Pages of planned requests that no tier had."""
    refused_by_threshold: int = 0
    """Pages that were there and not loaded, because the gain was below the threshold."""
    refused_by_cost: int = 0
    """Pages that were there and not loaded, because recomputing is faster."""
    looks_expired: int = 0
    """Remote look-ups that weren't answered by their deadline."""
    leases_expired: int = 0
    """Leases that nobody released in time."""
    tickets: int = 0
    prefetches: int = 0

    def copy(self) -> "Statistics":
        """A copy that stays as it is."""
        return replace(self, tiers={tier: counts.copy() for tier, counts in self.tiers.items()})

    def planned(self, match: Match, plan: Plan) -> None:
        """Count a request's plan."""
        for span in clip(match.spans, plan.start, match.pages):
            self.tiers[span.tier].hits += span.stop - span.start
        self.misses += max(len(match.keys) - max(match.pages, plan.start), 0)
        refused = max(match.pages, plan.start) - plan.cut
        if plan.reason is Reason.THRESHOLD:
            self.refused_by_threshold += refused
        else:
            self.refused_by_cost += refused

    def loaded(self, tier: Tier, outcome: Outcome, size: int, seconds: float) -> None:
        """Count one page's read."""
        counts = self.tiers[tier]
        counts.load_latencies.add(seconds)
        counts.damaged += outcome is Outcome.DAMAGED
        counts.failed += outcome is Outcome.FAILED
        if outcome is Outcome.DONE:
            counts.loaded += 1
            counts.bytes_loaded += size

    def stored(self, tier: Tier, outcome: Outcome, size: int, seconds: float) -> None:
        """Count one page's write; one that was there already is none."""
        if outcome is Outcome.THERE:
            return
        counts = self.tiers[tier]
        counts.store_latencies.add(seconds)
        counts.failed += outcome is Outcome.FAILED
        counts.drops += outcome in (Outcome.FULL, Outcome.DROPPED)
        if outcome is Outcome.DONE:
            counts.stored += 1
            counts.bytes_stored += size
