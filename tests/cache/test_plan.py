from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.economics import Costs, Priors
from cache.plan import Match, Plan, Reason, Span, clip, decide
from cache.testing import SPACE
from cache.tiers.base import Tier

HOST, SSD, SHARED = Tier.HOST, Tier.SSD, Tier.SHARED


def costs(host: float = 0.1, ssd: float = 1.0, shared: float = 4.0, token: float = 0.1) -> Costs:
    """Seconds a page of each tier, and a token."""
    rates = {HOST: 1 / host, SSD: 1 / ssd, SHARED: 1 / shared}
    return Costs(1, dict.fromkeys(Tier, 1), Priors(1 / token, rates))


def match(*spans: tuple[Tier, int]) -> Match:
    made, at = [], 0
    for tier, pages in spans:
        made.append(Span(tier, at, at + pages))
        at += pages
    return Match(SPACE, [b""] * (at + 5), tuple(made))


def plan(found: Match, computed: int = 0, threshold: int = 1, prices: Costs | None = None) -> Plan:
    return decide(found, computed, page_tokens=10, threshold=threshold, costs=prices or costs())


def test_loads_all_that_is_cheaper_than_recomputing() -> None:
    made = plan(match((HOST, 4), (SSD, 3)), prices=costs(ssd=0.5))
    assert (made.cut, made.reason) == (7, Reason.LOAD)
    assert made.saved_seconds == pytest.approx(7 - 0.4 - 1.5)


def test_leaves_out_a_slow_tail() -> None:
    made = plan(match((HOST, 4), (SHARED, 3)))
    assert (made.cut, made.too_slow) == (4, {SHARED})


def test_a_slow_span_before_fast_ones_does_not_cut_them_off() -> None:
    made = plan(match((HOST, 4), (SHARED, 1), (HOST, 8)))
    assert (made.cut, made.reason, made.too_slow) == (13, Reason.LOAD, frozenset())


def test_a_tier_slower_than_recomputing_is_refused() -> None:
    made = plan(match((SHARED, 50)))
    assert (made.cut, made.reason, made.too_slow) == (0, Reason.COST, {SHARED})


def test_the_threshold_counts_the_gain() -> None:
    found = match((HOST, 10))
    assert plan(found, computed=40, threshold=60).cut == 10
    assert plan(found, computed=41, threshold=60).reason is Reason.THRESHOLD
    assert plan(found, computed=100, threshold=0).reason is Reason.MISS


@pytest.mark.parametrize("threshold", [0, 3, 10])
def test_a_threshold_within_a_page_leaves_the_rest_to_the_cost(threshold: int) -> None:
    assert plan(match((HOST, 1)), threshold=threshold).cut == 1
    dear = costs(host=100.0)
    assert plan(match((HOST, 1)), threshold=threshold, prices=dear).reason is Reason.COST


def test_a_threshold_within_a_page_counts_where_a_part_of_the_page_is_computed() -> None:
    assert plan(match((HOST, 1)), computed=7, threshold=3).cut == 1
    assert plan(match((HOST, 1)), computed=8, threshold=3).reason is Reason.THRESHOLD


def test_a_cut_below_the_threshold_is_no_candidate() -> None:
    made = plan(match((HOST, 5), (SHARED, 1)), threshold=60)
    assert (made.cut, made.reason) == (6, Reason.LOAD)


def test_what_the_engine_has_is_not_loaded() -> None:
    made = plan(match((HOST, 4), (SSD, 4)), computed=25, prices=costs(ssd=0.5))
    assert (made.start, made.cut) == (2, 8)
    assert made.spans == (Span(HOST, 2, 4), Span(SSD, 4, 8))


def test_room_and_backlog_bound_the_load() -> None:
    found, price = match((SSD, 8)), costs(ssd=0.5)
    bounded = decide(found, 0, page_tokens=10, threshold=1, costs=price, most_pages=3)
    assert bounded.cut == 3
    busy = decide(found, 0, page_tokens=10, threshold=1, costs=price, backlog=lambda tier: 100)
    assert (busy.cut, busy.reason) == (0, Reason.COST)


tiers = st.sampled_from([HOST, SSD, SHARED])
prices = st.floats(0.01, 5.0)


@given(
    st.lists(st.tuples(tiers, st.integers(1, 6)), max_size=6),
    st.integers(0, 80),
    st.integers(0, 120),
    prices,
    prices,
    prices,
)
def test_no_other_cut_saves_more(
    spans: Sequence[tuple[Tier, int]], computed: int, threshold: int, host: float, ssd: float, shared: float
) -> None:
    """Against trying every cut at a span's end."""
    found, price = match(*spans), costs(host, ssd, shared)
    made = plan(found, computed, threshold, price)
    start = computed // 10
    best = 0.0
    for cut in [span.stop for span in clip(found.spans, start, found.pages)]:
        load = sum(
            price.load_seconds(span.tier, span.stop - span.start) for span in clip(found.spans, start, cut)
        )
        if cut * 10 - computed >= threshold:
            best = max(best, price.recompute_seconds(cut * 10 - computed) - load)
    assert made.saved_seconds == pytest.approx(best)
    assert (made.reason is Reason.LOAD) == (best > 0) == (made.pages > 0)
