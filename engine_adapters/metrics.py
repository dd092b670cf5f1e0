"""What the engine's `/metrics` says of the tiers: names, and how much each has grown."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cache.hierarchy import Hierarchy
from cache.statistics import BOUNDS, Latencies, Statistics
from cache.tiers.base import Tier

COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "hpkv_hit_tokens": ("Tokens found beyond the engine's own cache when a request was planned.", ("tier",)),
    "hpkv_missed_tokens": ("Tokens of planned requests that no tier had.", ()),
    "hpkv_loaded_tokens": ("Tokens that requests took from the tiers, by where they lay.", ("tier",)),
    "hpkv_loaded_bytes": ("Bytes of the same.", ("tier",)),
    "hpkv_refused_tokens": (
        "Tokens found and not loaded: the gain was below the threshold, or recomputing is faster.",
        ("reason",),
    ),
    "hpkv_read_tokens": ("Tokens read from a tier into host memory, prefetches included.", ("tier",)),
    "hpkv_read_bytes": ("Bytes of the same.", ("tier",)),
    "hpkv_stored_tokens": ("Tokens stored in a tier.", ("tier",)),
    "hpkv_stored_bytes": ("Bytes of the same.", ("tier",)),
    "hpkv_evicted_tokens": ("Tokens evicted from a tier.", ("tier",)),
    "hpkv_dropped_pages": ("Stores that did not happen: no room, or too many waiting.", ("tier",)),
    "hpkv_damaged_pages": ("Pages that failed a check when they were read; they are recomputed.", ("tier",)),
    "hpkv_failed_pages": ("Reads and writes that a device or server refused.", ("tier",)),
    "hpkv_expired_pages": ("Loads that were not there by their deadline.", ("tier",)),
    "hpkv_expired_looks": ("Look-ups in a remote store not answered by their deadline.", ()),
    "hpkv_expired_leases": ("Leases that nobody released in time.", ()),
    "hpkv_prefetches": ("Prefetches that were ordered.", ()),
    "hpkv_errors": ("Failures inside the adapter; each was answered as a miss.", ()),
}
GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hpkv_tier_bytes": ("Bytes that a tier holds, overheads included.", ("tier",)),
    "hpkv_tier_capacity_bytes": ("The most bytes that a tier may hold; 0: decided elsewhere.", ("tier",)),
    "hpkv_tier_load_tokens_per_second": ("How fast a tier is believed to load.", ("tier",)),
    "hpkv_prefill_tokens_per_second": ("How fast the engine is believed to recompute.", ()),
    "hpkv_open_tickets": ("Loads under way.", ()),
    "hpkv_open_leases": ("Loads, hits and pins that keep pages.", ()),
    "hpkv_held_pages": ("Pages of host memory kept by leases, or being read, written or filled.", ()),
}
HISTOGRAMS: dict[str, str] = {
    "hpkv_read_seconds": "Seconds to read a page from a tier, each rounded up to its bucket's bound.",
    "hpkv_write_seconds": "Seconds to write a page to a tier, each rounded up to its bucket's bound.",
}
BUCKETS = BOUNDS
INTERVAL_SECONDS = 0.5
"""Between two answers: an engine may ask at each of its steps."""

Labels = tuple[str, ...]
Values = dict[tuple[str, Labels], float]


class Growth(NamedTuple):
    """What to add to the engine's metrics."""

    counters: Values
    gauges: Values
    observations: dict[tuple[str, Labels], list[float]]


class Meter:
    """Compares what the tiers count with what was told of it."""

    def __init__(
        self,
        tiers: Hierarchy,
        page_tokens: int,
        page_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        loaded: Counter[Tier] | None = None,
    ) -> None:
        self.loaded = Counter[Tier]() if loaded is None else loaded
        """Pages that requests took, by where they lay."""
        self.errors = 0
        self._tiers = tiers
        self._page_tokens = page_tokens
        self._page_bytes = page_bytes
        self._clock = clock
        self._told: Values = {}
        self._shown: Values = {}
        self._buckets: dict[tuple[str, Labels], list[int]] = {}
        self._next = 0.0
        self._put_off = False

    def take(self) -> Growth | None:
        """What has grown since the last answer; None if nothing has, or if that was just now."""
        now = self._clock()
        self._put_off = now < self._next
        if self._put_off:
            return None
        self._next = now + INTERVAL_SECONDS
        statistics = self._tiers.statistics()
        values = self._counted(statistics)
        grown = {name: value - self._told.get(name, 0) for name, value in values.items()}
        counters = {name: value for name, value in grown.items() if value}
        observations, gauges = dict(self._observed(statistics)), self._gauges()
        if not counters and not observations and gauges == self._shown:
            return None
        self._told, self._shown = values, gauges
        return Growth(counters, gauges, observations)

    def hasten(self) -> bool:
        """Whether something may wait to be told; if so, the next question is answered at once."""
        if self._put_off:
            self._next = 0.0
        return self._put_off

    def _counted(self, statistics: Statistics) -> Values:
        tokens, size = self._page_tokens, self._page_bytes
        values: Values = {
            ("hpkv_missed_tokens", ()): statistics.misses * tokens,
            ("hpkv_refused_tokens", ("threshold",)): statistics.refused_by_threshold * tokens,
            ("hpkv_refused_tokens", ("cost",)): statistics.refused_by_cost * tokens,
            ("hpkv_expired_looks", ()): statistics.looks_expired,
            ("hpkv_expired_leases", ()): statistics.leases_expired,
            ("hpkv_prefetches", ()): statistics.prefetches,
            ("hpkv_errors", ()): self.errors,
        }
        for tier, counts in statistics.tiers.items():
            by_tier = {
                "hpkv_hit_tokens": counts.hits * tokens,
                "hpkv_loaded_tokens": self.loaded[tier] * tokens,
                "hpkv_loaded_bytes": self.loaded[tier] * size,
                "hpkv_read_tokens": counts.loaded * tokens,
                "hpkv_read_bytes": counts.bytes_loaded,
                "hpkv_stored_tokens": counts.stored * tokens,
                "hpkv_stored_bytes": counts.bytes_stored,
                "hpkv_evicted_tokens": counts.evictions * tokens,
                "hpkv_dropped_pages": counts.drops,
                "hpkv_damaged_pages": counts.damaged,
                "hpkv_failed_pages": counts.failed,
                "hpkv_expired_pages": counts.expired,
            }
            values |= {(name, (tier.value,)): value for name, value in by_tier.items()}
        return values

    def _gauges(self) -> Values:
        activity = self._tiers.activity()
        values: Values = {
            ("hpkv_prefill_tokens_per_second", ()): self._tiers.prefill_rate(),
            ("hpkv_open_tickets", ()): activity.tickets,
            ("hpkv_open_leases", ()): activity.leases,
            ("hpkv_held_pages", ()): activity.held,
        }
        for tier, usage in self._tiers.usage().items():
            values["hpkv_tier_bytes", (tier.value,)] = usage.bytes
            values["hpkv_tier_capacity_bytes", (tier.value,)] = usage.capacity
        for tier, rate in self._tiers.rates().items():
            values["hpkv_tier_load_tokens_per_second", (tier.value,)] = rate * self._page_tokens
        return values

    def _observed(self, statistics: Statistics) -> Iterator[tuple[tuple[str, Labels], list[float]]]:
        for tier, counts in statistics.tiers.items():
            for name, latencies in (
                ("hpkv_read_seconds", counts.load_latencies),
                ("hpkv_write_seconds", counts.store_latencies),
            ):
                seconds = self._new(name, tier, latencies)
                if seconds:
                    yield (name, (tier.value,)), seconds

    def _new(self, name: str, tier: Tier, latencies: Latencies) -> list[float]:
        key = name, (tier.value,)
        before = self._buckets.get(key, [0] * len(latencies.counts))
        self._buckets[key] = latencies.counts
        bounds = (*BOUNDS, 2 * BOUNDS[-1])
        new = zip(bounds, latencies.counts, before, strict=True)
        return [bound for bound, now, then in new for _ in range(now - then)]
