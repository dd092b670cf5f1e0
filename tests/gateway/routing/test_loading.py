"""What a replica would load, against what the plan inside the engine decides."""

import itertools
import random
from typing import cast

import pytest

from cache.economics import Costs, Priors
from cache.keys import Namespace
from cache.plan import Match, decide
from cache.plan import Span as PageSpan
from cache.tiers.base import Tier as CacheTier
from engine_adapters.events import Tier
from gateway.fleet.agent import Economics
from gateway.index import Span
from gateway.routing import Held
from gateway.routing.loading import Loading, choose, estimate

PAGE = 16
BELOW = {Tier.HOST: CacheTier.HOST, Tier.SSD: CacheTier.SSD, Tier.SHARED: CacheTier.SHARED}


def economics(threshold: int = 1024, page: int = PAGE, **rates: float) -> Economics:
    rates = {"prefill": 1e4, "host": 1e6, "ssd": 1e5, "shared": 5e4} | rates
    return Economics(page, threshold, rates["prefill"], (0.0, rates["host"], rates["ssd"], rates["shared"]))


def held(*spans: tuple[Tier, int]) -> Held:
    """Spans up to these ends, one behind the other."""
    tokens, start, lie = [0, 0, 0, 0], 0, []
    for tier, end in spans:
        tokens[tier] += end - start
        lie.append(Span(tier, start, end))
        start = end
    return Held((tokens[0], tokens[1], tokens[2], tokens[3]), tuple(lie))


def test_below_host_nothing_is_the_engines_own() -> None:
    lies = held((Tier.GPU, 160), (Tier.HOST, 320), (Tier.SSD, 3200), (Tier.SHARED, 6400))
    assert estimate(lies, economics(host=0, ssd=0, shared=0)) == Loading((160, 160, 0, 0))


def test_the_cut_is_that_of_the_plan() -> None:
    """In thousands of random cases, threshold, costs and a `gpu` hit in the middle of a page included."""
    dice = random.Random(1)
    cuts = set()
    for _ in range(3000):
        page = dice.choice([16, 64])
        tiers = [tier for tier, _ in itertools.groupby(dice.choices(list(BELOW), k=dice.randint(1, 6)))]
        pages = list(itertools.accumulate(dice.randint(1, 90) for _ in tiers))
        computed = dice.choice([0, dice.randrange(0, pages[-1] * page, 16)])
        rates = {tier: 10 ** dice.uniform(3, 6) for tier in BELOW}
        prefill, threshold = 10 ** dice.uniform(3, 5), dice.choice([page, 256, 1024])
        costs = Costs(1, dict.fromkeys(CacheTier, 1), Priors(prefill, _per_page(rates, page)))
        lie = tuple(
            PageSpan(BELOW[tier], start, stop)
            for tier, start, stop in zip(tiers, [0, *pages], pages, strict=False)
        )
        match = Match(cast(Namespace, None), [b""] * pages[-1], lie)
        planned = decide(match, computed, page_tokens=page, threshold=max(threshold, page), costs=costs)
        ours = Economics(page, threshold, prefill, (0.0, *(rates[tier] for tier in BELOW)))
        spans = [Span(tier, 0, stop * page) for tier, stop in zip(tiers, pages, strict=True)]
        cut, seconds = choose(spans, computed, ours)
        assert cut == (planned.cut * page if planned.pages else computed)
        expected = sum(costs.load_seconds(s.tier, s.stop - s.start) for s in planned.spans)
        assert seconds == pytest.approx(expected)
        cuts.add((planned.reason, planned.cut == pages[-1]))
    assert len(cuts) == 4, "loads in part and in whole, and both reasons for none were among them"


def _per_page(rates: dict[Tier, float], page: int) -> dict[CacheTier, float]:
    """Rates in bytes, where a page has one."""
    return {BELOW[tier]: rate / page for tier, rate in rates.items()}


def test_spans_of_all_tiers_are_summed() -> None:
    found = held((Tier.GPU, 6000), (Tier.HOST, 10_000), (Tier.SSD, 18_000))
    assert estimate(found, economics()) == Loading((6000, 4000, 8000, 0), 4000 / 1e6 + 8000 / 1e5)


def test_a_page_of_ssd_between_spans_of_host_cuts_nothing_off() -> None:
    found = held((Tier.HOST, 1600), (Tier.SSD, 1616), (Tier.HOST, 3200))
    assert estimate(found, economics()).cached == (0, 3184, 16, 0)


@pytest.mark.parametrize(("tokens", "loaded"), [(1023, 0), (1024, 1024)])
def test_the_threshold_counts_from_the_gpu_hit(tokens: int, loaded: int) -> None:
    found = held((Tier.GPU, 512), (Tier.HOST, 512 + tokens))
    assert estimate(found, economics(page=1)).cached == (512, loaded, 0, 0)


def test_what_loads_more_slowly_than_it_is_computed_is_left() -> None:
    found = held((Tier.HOST, 1600), (Tier.SHARED, 16_000))
    slow = economics(shared=1e3)
    assert estimate(found, slow) == Loading((0, 1600, 0, 0), 1600 / 1e6)


def test_less_than_a_page_is_not_loaded_and_a_page_in_part_is_whole() -> None:
    found = held((Tier.GPU, 80), (Tier.HOST, 128))
    assert estimate(found, economics(threshold=1, page=64)) == Loading((80, 0, 0, 0))
    found = held((Tier.GPU, 80), (Tier.HOST, 192))
    assert estimate(found, economics(threshold=1, page=64)) == Loading((80, 112, 0, 0), 128 / 1e6)


def test_a_host_tier_of_the_engines_own_needs_no_load_and_counts_for_no_gain() -> None:
    found = held((Tier.GPU, 512), (Tier.HOST, 1536), (Tier.SSD, 2048))
    assert estimate(found, economics(threshold=513, host=0.0)) == Loading((512, 1024, 0, 0))
    assert estimate(found, economics(threshold=512, host=0.0)) == Loading((512, 1024, 512, 0), 512 / 1e5)


def test_without_an_agent_only_what_the_engine_told_counts() -> None:
    found = held((Tier.GPU, 512), (Tier.HOST, 1024), (Tier.SHARED, 4096))
    assert estimate(found, None) == Loading((512, 512, 0, 0))


def test_an_agent_that_knows_no_prefill_rate_yet_is_expected_to_load_nothing() -> None:
    found = held((Tier.GPU, 16), (Tier.HOST, 4096))
    assert estimate(found, economics(prefill=0.0)).cached == (16, 0, 0, 0)
