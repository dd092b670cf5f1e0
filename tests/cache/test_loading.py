"""Pages on their way up: spans, joins, cancels, deadlines, leases, prefetches, probes."""

import time

import pytest

from cache.economics import PROBE_SECONDS, Priors
from cache.memory import allocate
from cache.plan import Reason
from cache.testing import PAGE_BYTES, SPACE, content, key, page, pages
from cache.tickets import Phase
from cache.tiers.base import Tier
from cache.tiers.lane import Width
from tests.cache.build import keys, wait_for
from tests.cache.conftest import MakeRig
from tests.cache.remote import Remote


def test_a_mixed_match_loads_each_span_from_its_tier(make_rig: MakeRig) -> None:
    shared = Remote(range(20))
    rig = make_rig(slots=32, more=[shared])
    rig.store(0, 16)
    rig.drop_host()
    shared.pages = {key(n): bytes(content(n)) for n in range(20)}
    rig.store(0, 4)
    rig.store(8, 10)
    assert rig.where(0, 24) == [
        (Tier.HOST, 4),
        (Tier.SSD, 4),
        (Tier.HOST, 2),
        (Tier.SSD, 6),
        (Tier.SHARED, 4),
    ]
    assert rig.loaded(0, 24).ready == 20
    assert rig.where(0, 24) == [(Tier.HOST, 20)]
    counts = rig.tiers.statistics()
    assert (counts.tiers[Tier.SSD].loaded, counts.tiers[Tier.SHARED].loaded) == (10, 4)
    assert [counts.tiers[tier].hits for tier in Tier] == [6, 10, 4]
    assert counts.misses == 4


def test_pages_are_promoted_between_the_tiers(make_rig: MakeRig) -> None:
    rig = make_rig(more=[Remote(range(6))])
    assert rig.loaded(0, 6).ready == 6
    rig.drop_host()
    assert rig.where(0, 6) == [(Tier.SSD, 6)]


def test_a_remote_store_is_read_in_batches(make_rig: MakeRig) -> None:
    shared = Remote(range(8))
    rig = make_rig(more=[shared])
    rig.loaded(0, 8)
    assert max(shared.calls) > 1
    assert max(shared.calls) <= 4


def test_equal_loads_are_joined(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 8)
    rig.drop_host()
    rig.disk.works.clear()
    first, second, third = rig.load(0, 8), rig.load(0, 8), rig.load(0, 4, prefetch=True)
    second.cancel()
    rig.disk.works.set()
    assert (first.wait(5).ready, third.wait(5).ready) == (8, 4)
    assert second.progress().phase is Phase.CANCELLED
    assert rig.tiers.statistics().tiers[Tier.SSD].loaded == 8
    rig.check(0, 8)


def test_a_cancelled_load_gives_everything_back(make_rig: MakeRig) -> None:
    running = Width().readers
    count = running + 8
    rig = make_rig(slots=count)
    rig.store(0, count)
    rig.drop_host()
    rig.disk.works.clear()
    ticket = rig.load(0, count)
    ticket.cancel()
    ticket.cancel()
    rig.disk.works.set()
    assert rig.tiers.drain(5)
    assert rig.host is not None
    assert rig.host.book.held == 0
    assert rig.tiers.statistics().tiers[Tier.SSD].loaded <= running
    assert rig.loaded(0, count).ready == count


def test_a_ticket_whose_owner_vanished_ends(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.store(0, 8)
    rig.drop_host()
    ticket = rig.load(0, 8, seconds=0.05, prefetch=True)
    wait_for(lambda: rig.tiers.statistics().leases_expired == 1)
    assert rig.tiers.drain(5)
    assert rig.host is not None
    assert rig.host.book.held == 0
    assert ticket.progress().ready == 0


def test_claimed_pages_outlive_deadlines_and_clears(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4)
    rig.store(0, 3)
    plan = rig.plan(0, 3)
    ticket = rig.tiers.load(plan, pages(0, 3), seconds=0.01)
    slots = rig.tiers.claim(ticket, plan)
    assert slots == rig.tiers.slots(SPACE, keys(0, 3))
    time.sleep(1.2)
    rig.tiers.clear(Tier.HOST)
    assert rig.store(10, 14) == 1, "three of the four slots are claimed"
    assert rig.host is not None
    assert [rig.host.page(slot) for slot in slots] == [content(n) for n in range(3)]
    ticket.release()
    assert rig.store(10, 14) == 3
    rig.tiers.audit()


def test_what_is_gone_before_the_claim_is_not_claimed(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4)
    rig.store(0, 3)
    plan = rig.plan(0, 3)
    ticket = rig.tiers.load(plan, pages(0, 3), seconds=0.01)
    rig.tiers.clear(Tier.HOST)
    assert rig.tiers.claim(ticket, plan) == []


def test_what_came_back_after_a_clear_is_not_claimed(make_rig: MakeRig) -> None:
    """It lies in other slots, which nothing keeps: the engine would copy whatever comes there next."""
    rig = make_rig(slots=8)
    rig.store(0, 3)
    plan = rig.plan(0, 3)
    ticket = rig.tiers.load(plan, pages(0, 3))
    rig.tiers.clear(Tier.HOST)
    assert rig.store(0, 3) == 3
    assert rig.tiers.claim(ticket, plan) == []
    ticket.release()
    rig.tiers.audit()


def test_a_hung_load_that_nobody_polls_ends(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 12)
    rig.drop_host()
    rig.disk.works.clear()
    rig.load(0, 12, seconds=0.05)
    assert len(rig.tiers._state.tickets) == 1
    wait_for(lambda: not rig.tiers._state.tickets)
    assert rig.tiers.statistics().tiers[Tier.SSD].expired == 12
    rig.disk.works.set()


def test_what_waits_to_be_read_is_kept_from_eviction(make_rig: MakeRig) -> None:
    count = Width().readers + 4
    rig = make_rig(slots=count)
    rig.store(0, count)
    rig.drop_host()
    rig.disk.works.clear()
    ticket = rig.load(0, count)
    assert rig.ssd._book.held >= count
    rig.disk.works.set()
    ticket.wait(5)
    ticket.release()
    assert rig.ssd._book.held == 0


def test_a_prefetch_leaves_the_hotter_half_alone(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16)
    rig.store(0, 12)
    rig.drop_host()
    rig.store(100, 108)
    rig.store(200, 208)
    rig.tiers.drain(5)
    assert rig.load(0, 12, prefetch=True).wait(5).ready == 8
    rig.check(200, 208)


def test_prefetches_larger_than_host_leave_requests_their_half(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16)
    for first in range(0, 96, 8):
        rig.store(first, first + 8)
        rig.drop_host()
    rig.store(200, 208)
    rig.tiers.drain(5)
    tickets = [rig.load(first, first + 8, prefetch=True) for first in range(0, 96, 8)]
    assert sum(ticket.wait(5).ready for ticket in tickets) == 8
    rig.check(200, 208)
    tickets[0].release()
    assert rig.load(8, 16, prefetch=True).wait(5).ready == 8


def test_prefetches_keep_half_of_what_pins_leave(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16)
    rig.store(0, 16)
    rig.drop_host()
    rig.store(200, 208)
    rig.tiers.drain(5)
    pin = rig.tiers.pin(rig.tiers.match(SPACE, [key(number) for number in range(200, 208)]), 60)
    first = rig.load(0, 8, prefetch=True)
    assert first.wait(5).ready == 4
    assert len(rig.load(8, 16, prefetch=True)) == 0
    rig.tiers.unpin(pin)
    assert rig.load(8, 16, prefetch=True).wait(5).ready == 4, "beside the four of the first"


def test_a_page_asked_for_twice_in_one_load(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 2)
    rig.drop_host()
    rig.disk.works.clear()
    match = rig.tiers.match(SPACE, [key(0), key(0)])
    ticket = rig.tiers.load(rig.tiers.plan(match), [page(0), page(0)])
    ticket.cancel()
    assert ticket.progress().settled
    rig.disk.works.set()


def test_a_page_gone_since_the_plan_ends_the_load_before_it(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.store(0, 6)
    rig.tiers.drain(5)
    plan = rig.plan(0, 6)
    rig.tiers.clear(tenant=0)
    rig.store(0, 2)
    ticket = rig.tiers.load(plan, pages(0, 6))
    assert ticket.wait(5) == (Phase.DONE, 2, True)
    ticket.release()


def test_more_than_host_holds_is_cut(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    for first in range(0, 24, 8):
        rig.store(first, first + 8)
        rig.tiers.drain(5)
    assert rig.plan(0, 24).pages == 8
    assert rig.loaded(0, 24).ready == 8


def test_a_tier_too_slow_is_refused_and_probed(make_rig: MakeRig) -> None:
    now = [1000.0]
    rig = make_rig(slots=16, priors=Priors(prefill_tokens_per_second=16 / 0.01))
    rig.tiers._state.now = lambda: now[0]
    rig.tiers._state.costs._clock = lambda: now[0]
    rig.store(0, 8)
    rig.drop_host()
    rig.disk.slow_seconds = 0.2
    rig.loaded(0, 8)
    rig.drop_host()
    assert rig.plan(0, 8).reason is Reason.COST
    rig.tiers.drain(5)
    rig.disk.slow_seconds = 0.0
    assert rig.plan(0, 8).reason is Reason.COST
    rig.tiers.drain(5)
    now[0] += PROBE_SECONDS
    assert rig.plan(0, 8).reason is Reason.COST
    rig.tiers.drain(5)
    assert rig.plan(0, 8).reason is Reason.LOAD
    assert rig.tiers.statistics().refused_by_cost == 24


def test_without_a_host_tier_pages_go_to_the_callers_buffers(make_rig: MakeRig) -> None:
    rig = make_rig(slots=0)
    ticket = rig.tiers.write(SPACE, pages(0, 6), [[content(n)] for n in range(6)])
    assert ticket.wait(5) == (Phase.DONE, 6, True)
    plan = rig.plan(0, 8)
    assert plan.pages == 6
    into = [[allocate(4096), allocate(PAGE_BYTES - 4096)] for _ in range(6)]
    ticket = rig.tiers.read(plan, into)
    assert ticket.wait(5) == (Phase.DONE, 6, True)
    assert [bytes(a) + bytes(b) for a, b in into] == [bytes(content(n)) for n in range(6)]
    with pytest.raises(AssertionError, match="caller's buffers"):
        rig.tiers.load(plan, pages(0, 6))


def test_buffers_of_an_expired_read_are_not_settled(make_rig: MakeRig) -> None:
    rig = make_rig(slots=0)
    rig.tiers.write(SPACE, pages(0, 1), [[content(0)]]).wait(5)
    plan = rig.plan(0, 1)
    rig.disk.works.clear()
    ticket = rig.tiers.read(plan, [[allocate(PAGE_BYTES)]], seconds=0.05)
    wait_for(lambda: ticket.progress().phase is Phase.EXPIRED)
    assert ticket.progress() == (Phase.EXPIRED, 0, False)
    rig.disk.works.set()
    assert ticket.wait(5).settled
