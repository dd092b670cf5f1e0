from cache.plan import Match, Plan, Reason, Span
from cache.statistics import BOUNDS, Latencies, Statistics, TierCounts
from cache.testing import SPACE
from cache.tiers.base import Outcome, Tier


def statistics() -> Statistics:
    return Statistics({tier: TierCounts() for tier in Tier})


def test_latencies_fall_into_their_buckets() -> None:
    latencies = Latencies()
    for seconds in (0.00005, 0.0001, 0.00011, 100.0):
        latencies.add(seconds)
    assert (latencies.counts[0], latencies.counts[1], latencies.counts[len(BOUNDS)]) == (2, 1, 1)
    assert sum(latencies.counts) == 4


def test_a_plan_counts_hits_beyond_what_the_engine_had() -> None:
    counts = statistics()
    match = Match(SPACE, [b""] * 12, (Span(Tier.HOST, 0, 4), Span(Tier.SSD, 4, 10)))
    counts.planned(match, Plan(match, 2, 6, Reason.LOAD))
    assert (counts.tiers[Tier.HOST].hits, counts.tiers[Tier.SSD].hits, counts.misses) == (2, 6, 2)
    assert (counts.refused_by_cost, counts.refused_by_threshold) == (4, 0)
    counts.planned(match, Plan(match, 2, 2, Reason.THRESHOLD))
    assert counts.refused_by_threshold == 8


def test_an_engine_that_has_more_than_was_asked_for_takes_no_misses_back() -> None:
    counts = statistics()
    match = Match(SPACE, [b""] * 4, (Span(Tier.HOST, 0, 2),))
    counts.planned(match, Plan(match, 9, 9, Reason.MISS))
    assert (counts.misses, counts.tiers[Tier.HOST].hits, counts.refused_by_cost) == (0, 0, 0)


def test_outcomes_are_counted_apart() -> None:
    counts = statistics()
    for outcome in Outcome:
        counts.loaded(Tier.SSD, outcome, 100, 0.001)
        counts.stored(Tier.SSD, outcome, 100, 0.001)
    ssd = counts.tiers[Tier.SSD]
    assert (ssd.loaded, ssd.bytes_loaded, ssd.stored, ssd.bytes_stored) == (1, 100, 1, 100)
    assert (ssd.damaged, ssd.failed, ssd.drops) == (1, 2, 2)


def test_a_copy_stays_as_it_is() -> None:
    counts = statistics()
    copy = counts.copy()
    counts.loaded(Tier.SSD, Outcome.DONE, 100, 0.001)
    assert (copy.tiers[Tier.SSD].loaded, sum(copy.tiers[Tier.SSD].load_latencies.counts)) == (0, 0)
