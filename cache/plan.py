"""The decision: how far to load, and what to leave to the engine."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cache.economics import Costs
from cache.keys import Namespace
from cache.tiers.base import Tier


class Span(NamedTuple):
    """Neighbouring pages that lie in one tier, the fastest that has them."""

    tier: Tier
    start: int
    """First page, counted from the prompt's start."""
    stop: int
    """The page after the last."""


@dataclass(frozen=True, slots=True)
class Match:
    """How many leading pages of a prompt are present, in spans."""

    namespace: Namespace
    keys: Sequence[bytes]
    spans: tuple[Span, ...]

    @property
    def pages(self) -> int:
        """Leading pages that lie in some tier."""
        return self.spans[-1].stop if self.spans else 0


class Reason(enum.Enum):
    """Why a plan loads what it loads."""

    LOAD = "load"
    MISS = "miss"
    """Nothing lies below that the engine hasn't computed already."""
    THRESHOLD = "threshold"
    """The gain is below the threshold."""
    COST = "cost"
    """Recomputing is faster."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Load the pages from `start` up to `cut` (both in pages); recompute the rest."""

    match: Match
    start: int
    cut: int
    reason: Reason
    saved_seconds: float = 0.0
    """Estimated time of recomputing the gain, less the time of loading it."""
    too_slow: frozenset[Tier] = frozenset()
    """Tiers of which some pages are left out because they load too slowly."""

    @property
    def pages(self) -> int:
        """Pages to load."""
        return self.cut - self.start

    @property
    def spans(self) -> tuple[Span, ...]:
        """What to load from where."""
        return clip(self.match.spans, self.start, self.cut)


def clip(spans: Sequence[Span], start: int, stop: int) -> tuple[Span, ...]:
    """The parts of the spans that lie within [start, stop)."""
    cut = (Span(span.tier, max(span.start, start), min(span.stop, stop)) for span in spans)
    return tuple(span for span in cut if span.start < span.stop)


def decide(
    match: Match,
    computed_tokens: int,
    *,
    page_tokens: int,
    threshold: int,
    costs: Costs,
    backlog: Callable[[Tier], int] = lambda tier: 0,
    most_pages: int | None = None,
) -> Plan:
    """Choose the cut that saves most time.

    `computed_tokens`: what the engine has already (its `gpu` hit); a page that it has in part is loaded
    whole. The gain of a cut is the tokens from there to the cut. A cut whose gain is below `threshold` tokens
    is no candidate; among the others (the ends of spans) the one with the largest recompute(gain) -
    load(spans) wins, if that is positive. `most_pages` bounds the load by the room for it.
    """
    start = computed_tokens // page_tokens
    stop = match.pages if most_pages is None else min(match.pages, start + most_pages)
    spans = clip(match.spans, start, stop)
    if not spans:
        return Plan(match, start, start, Reason.MISS)
    best, best_saved, load = start, 0.0, 0.0
    for span in spans:
        load += costs.load_seconds(span.tier, span.stop - span.start, backlog(span.tier))
        gain = span.stop * page_tokens - computed_tokens
        saved = costs.recompute_seconds(gain) - load
        if gain >= threshold and saved > best_saved:
            best, best_saved = span.stop, saved
    if stop * page_tokens - computed_tokens < threshold:
        return Plan(match, start, start, Reason.THRESHOLD)
    left_out = frozenset(span.tier for span in clip(spans, best, stop)) - {Tier.HOST}
    reason = Reason.LOAD if best > start else Reason.COST
    return Plan(match, start, best, reason, best_saved, left_out)
