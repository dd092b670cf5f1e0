"""What became of prefetches, for Prometheus."""

from collections.abc import Iterable
from enum import StrEnum
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter

from engine_adapters.wire import Order, Progress, Span


class Outcome(StrEnum):
    """How a request's prefetch ended."""

    USEFUL = "useful"
    """It had loaded pages, and all of them, when the request's first chunk came."""
    LATE = "late"
    """It was still loading then: the request waited for it, or went ahead without the rest."""
    MISSED = "missed"
    """There was nothing that the agent would load, or it could not be loaded."""
    WASTED = "wasted"
    """The request never had a first chunk there: its client left, or the replica failed."""
    FAILED = "failed"
    """The agent didn't answer, or refused."""
    SKIPPED = "skipped"
    """Too many were open at the replica, so it was not asked for."""


def outcome(progress: Progress, *, taken: bool) -> Outcome:
    """What to call it; `taken`: its request has had its first chunk."""
    if not taken:
        return Outcome.WASTED
    if progress.running:
        return Outcome.LATE
    return Outcome.USEFUL if progress.loaded else Outcome.MISSED


class PrefetchMetrics:
    """Counters by replica."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._issued = Counter(
            "hpkv_gateway_prefetches_total",
            "Prefetches ordered ahead of requests",
            ["replica"],
            registry=registry,
        )
        self._ended = Counter(
            "hpkv_gateway_prefetches_ended_total",
            "How they ended: useful, late, missed, wasted, failed; or skipped, and never ordered",
            ["replica", "outcome"],
            registry=registry,
        )
        self._tokens = Counter(
            "hpkv_gateway_prefetch_tokens_total",
            "Tokens that they were to bring up, by the tier that had them",
            ["replica", "tier"],
            registry=registry,
        )
        self._loaded = Counter(
            "hpkv_gateway_prefetch_loaded_tokens_total",
            "Tokens that had been brought up when their request had its first chunk or ended",
            ["replica"],
            registry=registry,
        )

    def forget(self, replica: str) -> None:
        """Show no more of a replica that is gone for good."""
        for metric in (self._issued, self._ended, self._tokens, self._loaded):
            metric.remove_by_labels({"replica": replica})

    def issued(self, replica: str) -> None:
        """One is ordered."""
        self._issued.labels(replica).inc()

    def ended(self, replica: str, outcome: Outcome, loaded: int = 0) -> None:
        """It is over."""
        self._ended.labels(replica, outcome).inc()
        self._loaded.labels(replica).inc(loaded)

    def ordered(self, replica: str, order: Order, start: int) -> None:
        """The agent took the order; its spans begin at token `start`."""
        for tier, tokens in by_tier(order.spans, start, order.cut).items():
            self._tokens.labels(replica, tier).inc(tokens)


def by_tier(spans: Iterable[Span], start: int, stop: int) -> dict[str, int]:
    """Tokens of spans by tier, between `start`, where the first begins, and `stop`."""
    spans = list(spans)
    tokens: dict[str, int] = {}
    for (begin, end), span in zip(pairwise([start, *(span.end for span in spans)]), spans, strict=True):
        tokens[span.tier] = tokens.get(span.tier, 0) + max(0, min(end, stop) - begin)
    return {tier: count for tier, count in tokens.items() if count}
