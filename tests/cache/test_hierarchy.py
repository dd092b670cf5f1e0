"""The tiers as one: spans, loads, joins, leases, write policies, clears."""

import time
from collections.abc import Sequence

import pytest

from cache.economics import PROBE_SECONDS, Priors
from cache.errors import SettingsError
from cache.hierarchy import Hierarchy
from cache.keys import Namespace
from cache.memory import allocate
from cache.plan import Reason
from cache.policies import Back, SecondTouch, Selective
from cache.state import Level, Settings
from cache.testing import BASE, PAGE_BYTES, SPACE, content, key, page, pages, told
from cache.tickets import Phase
from cache.tiers.base import Outcome, Read, Store, Tier, Usage, Write
from cache.tiers.host import Host
from cache.tiers.slots import ABSENT
from tests.cache.build import keys
from tests.cache.conftest import MakeRig


class Remote(Store):
    """A shared store in memory that answers look-ups after a while."""

    tier = Tier.SHARED
    remote = True
    batch = 4

    def __init__(self, numbers: Sequence[int] = (), look_seconds: float = 0.0) -> None:
        self.pages = {key(number): bytes(content(number)) for number in numbers}
        self.look_seconds = look_seconds
        self.calls: list[int] = []

    def find(self, namespace: Namespace, keys: Sequence[bytes]) -> list[bool]:
        time.sleep(self.look_seconds)
        return [key in self.pages for key in keys]

    def read(self, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:
        self.calls.append(len(reads))
        outcomes = []
        for read in reads:
            if read.key in self.pages:
                read.into[0][:] = self.pages[read.key]
            outcomes.append(Outcome.DONE if read.key in self.pages else Outcome.MISSING)
        return outcomes

    def write(self, namespace: Namespace, writes: Sequence[Write]) -> list[Outcome]:
        self.pages |= {write.page.key: bytes(write.parts[0]) for write in writes}
        return [Outcome.DONE] * len(writes)

    def clear(self, tenant: int | None = None) -> int:
        count = len(self.pages)
        self.pages.clear()
        return count

    def usage(self) -> Usage:
        return Usage(len(self.pages), 0, 0)


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


def test_a_match_ends_at_the_first_gap(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 3)
    rig.store(4, 6)
    assert rig.where(0, 6) == [(Tier.HOST, 3)]
    assert rig.where(3, 6) == []


def test_looking_is_not_using(make_rig: MakeRig) -> None:
    """Matches in a loop, while filling, keep nothing: eviction goes on in the order of use."""
    rig = make_rig(slots=8)
    rig.store(0, 4)
    rig.store(10, 14)
    for first in range(20, 40, 4):
        rig.tiers.match(SPACE, keys(0, 4))
        assert rig.tiers.drain(5)
        rig.store(first, first + 4)
        assert rig.store(first, first + 4) == 0
    rig.drop_host()
    assert rig.where(36, 40) == [(Tier.SSD, 4)]


def test_a_used_page_outlives_an_unused_one(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.store(0, 4)
    rig.store(10, 14)
    rig.loaded(0, 4)
    rig.tiers.drain(5)
    rig.store(20, 24)
    assert rig.tiers.slots(SPACE, keys(10, 14)) == [ABSENT] * 4
    rig.check(0, 4)


def test_what_is_hot_in_host_stays_in_ssd_too(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16, cap=256 << 10)
    rig.store(0, 4)
    for first in range(100, 148, 4):
        rig.store(first, first + 4)
        rig.tiers.drain(5)
        rig.loaded(0, 4)
    assert rig.ssd.usage().evictions > 30
    assert rig.ssd.find(SPACE, keys(0, 4)) == [True] * 4


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


def test_a_slow_remote_look_up_is_not_waited_for(make_rig: MakeRig) -> None:
    rig = make_rig(more=[Remote(range(10), look_seconds=0.5)])
    rig.store(0, 3)
    begin = time.monotonic()
    match = rig.tiers.match(SPACE, keys(0, 10), seconds=0.02)
    assert time.monotonic() - begin < 0.06
    assert match.pages == 3
    assert rig.tiers.statistics().looks_expired == 1
    look = rig.tiers.look(SPACE, keys(0, 10), seconds=5)
    assert look.pending
    assert look.wait().pages == 10


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
    rig = make_rig(slots=16)
    rig.store(0, 12)
    rig.drop_host()
    rig.disk.works.clear()
    ticket = rig.load(0, 12)
    ticket.cancel()
    ticket.cancel()
    rig.disk.works.set()
    assert rig.tiers.drain(5)
    assert rig.host is not None
    assert rig.host.book.held == 0
    assert rig.tiers.statistics().tiers[Tier.SSD].loaded <= 8
    assert rig.loaded(0, 12).ready == 12


def test_leased_pages_stay_and_stores_drop(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.store(0, 8)
    rig.tiers.drain(5)
    ticket = rig.load(0, 8)
    assert ticket.wait(5).ready == 8
    assert rig.store(20, 24) == 0
    assert rig.tiers.statistics().tiers[Tier.HOST].drops == 4
    rig.check(0, 8)
    ticket.release()
    assert rig.store(20, 24) == 4


def test_a_ticket_whose_owner_vanished_ends(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.store(0, 8)
    rig.drop_host()
    ticket = rig.load(0, 8, seconds=0.05, prefetch=True)
    time.sleep(0.4)
    assert rig.host is not None
    assert rig.host.book.held == 0
    assert rig.tiers.statistics().leases_expired == 1
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


def test_pages_used_in_the_engines_own_cache_outlive_others(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4)
    rig.store(0, 2)
    rig.store(2, 4)
    rig.tiers.touch(SPACE, keys(0, 2))
    rig.store(4, 6)
    assert rig.tiers.slots(SPACE, keys(2, 4)) == [ABSENT, ABSENT]
    assert ABSENT not in rig.tiers.slots(SPACE, keys(0, 2))


def test_a_hung_load_that_nobody_polls_ends(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 12)
    rig.drop_host()
    rig.disk.works.clear()
    rig.load(0, 12, seconds=0.05)
    time.sleep(0.4)
    assert rig.tiers._state.tickets == set()
    assert rig.tiers.statistics().tiers[Tier.SSD].expired == 12
    rig.disk.works.set()


def test_what_waits_to_be_read_is_kept_from_eviction(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 12)
    rig.drop_host()
    rig.disk.works.clear()
    ticket = rig.load(0, 12)
    assert rig.ssd._book.held >= 12
    rig.disk.works.set()
    ticket.wait(5)
    ticket.release()
    assert rig.ssd._book.held == 0


def test_a_pin_keeps_pages_for_its_time(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.store(0, 4)
    rig.tiers.drain(5)
    pin = rig.tiers.pin(rig.tiers.match(SPACE, keys(0, 4)), seconds=60)
    rig.tiers.pin(rig.tiers.match(SPACE, keys(0, 2)), seconds=0.05)
    for first in range(20, 60, 4):
        rig.store(first, first + 4)
        rig.tiers.drain(5)
    rig.check(0, 4)
    rig.tiers.unpin(pin)
    time.sleep(0.3)
    rig.store(60, 68)
    assert rig.tiers.slots(SPACE, keys(0, 4)) == [ABSENT] * 4


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


def test_the_threshold_and_what_the_engine_has(make_rig: MakeRig) -> None:
    rig = make_rig(threshold=64)
    rig.store(0, 8)
    assert rig.plan(0, 3).reason is Reason.THRESHOLD
    assert rig.plan(0, 4).pages == 4
    assert rig.plan(0, 8, computed=5 * 16).reason is Reason.THRESHOLD
    assert rig.plan(0, 8, computed=4 * 16).pages == 4
    assert rig.plan(0, 8, computed=8 * 16).reason is Reason.MISS
    assert rig.tiers.statistics().refused_by_threshold == 3 + 3


def test_write_back_writes_before_eviction_only(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16, write=Back())
    rig.store(0, 8)
    rig.tiers.drain(5)
    assert rig.ssd.usage().pages == 0
    for first in range(8, 64, 2):
        rig.store(first, first + 2)
        rig.tiers.drain(5)
    counts = rig.tiers.statistics().tiers[Tier.HOST]
    assert counts.evictions > 40
    assert counts.drops < 4
    assert rig.ssd.usage().pages >= 40


def test_selective_writes_at_the_second_touch(make_rig: MakeRig) -> None:
    rig = make_rig(write=Selective())
    rig.store(0, 4)
    rig.tiers.drain(5)
    assert rig.ssd.usage().pages == 0
    rig.loaded(0, 2)
    rig.tiers.drain(5)
    assert rig.ssd.find(SPACE, keys(0, 4)) == [True, True, False, False]


def test_second_touch_admission(make_rig: MakeRig) -> None:
    shared = Remote()
    rig = make_rig(slots=8)
    rig.tiers.close()
    host = Host(allocate(8 * PAGE_BYTES), PAGE_BYTES)
    settings = Settings(page_tokens=16, page_bytes=PAGE_BYTES, threshold=16)
    tiers = Hierarchy(settings, host, [Level(shared, admission=SecondTouch())])
    for _ in range(2):
        assert len(shared.pages) == 0
        tiers.store(SPACE, pages(0, 4), [[content(n)] for n in range(4)])
        tiers.drain(5)
        tiers.clear(Tier.HOST)
    assert len(shared.pages) == 4
    tiers.close()


def test_clear_a_tenant(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16)
    rig.store(0, 4, tenant=7)
    rig.store(10, 14, tenant=8)
    rig.tiers.drain(5)
    assert rig.tiers.clear(tenant=7) == 8
    assert rig.where(0, 4) == []
    assert rig.where(10, 14) == [(Tier.HOST, 4)]


def test_what_is_under_way_does_not_survive_a_clear(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16)
    rig.store(0, 8)
    rig.drop_host()
    reservation = rig.tiers.reserve(SPACE, pages(50, 54))
    rig.disk.works.clear()
    rig.store(20, 24)
    ticket = rig.load(0, 8)
    time.sleep(0.05)
    rig.tiers.clear(Tier.HOST)
    rig.disk.works.set()
    assert rig.tiers.commit(reservation) == 0
    assert rig.tiers.drain(5)
    assert ticket.wait(5).ready == 0
    assert rig.tiers.usage()[Tier.HOST].pages == 0
    ticket.release()


def test_a_clear_drops_what_waits_to_be_written(make_rig: MakeRig) -> None:
    """Of pages still in `host` too: whose they are is only sure once they are looked at again."""
    rig = make_rig()
    rig.disk.works.clear()
    rig.store(0, 14)
    time.sleep(0.05)
    rig.tiers.clear(Tier.HOST, tenant=99)
    rig.disk.works.set()
    assert rig.tiers.drain(5)
    assert rig.ssd.usage().pages == 8, "those that were under way"
    rig.check(0, 14)


def test_a_failed_copy_is_not_stored(make_rig: MakeRig) -> None:
    rig = make_rig()
    reservation = rig.tiers.reserve(SPACE, pages(0, 3))
    assert rig.host is not None
    for slot, number in zip(reservation.slots, range(3), strict=True):
        rig.host.page(slot)[:] = content(number)
    assert rig.tiers.match(SPACE, keys(0, 3)).pages == 0
    assert rig.tiers.reserve(SPACE, pages(0, 3)).slots == []
    assert rig.tiers.commit(reservation, [True, False, True]) == 2
    assert rig.where(0, 3) == [(Tier.HOST, 1)]


def test_other_namespaces_see_nothing(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    rig.tiers.drain(5)
    assert rig.tiers.match(BASE.namespace(lora="x"), keys(0, 4)).pages == 0


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


def test_changes_and_snapshots_agree(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8, cap=256 << 10)
    listener = rig.tiers.listen()
    for first in range(0, 48, 4):
        rig.store(first, first + 4)
        rig.tiers.drain(5)
    changes = [one.change for one in listener.drain().changes]
    for tier in (Tier.HOST, Tier.SSD):
        snapshot = rig.tiers.snapshot(tier)
        assert snapshot is not None
        known = set(zip(snapshot.known.prefix_keys.tolist(), snapshot.known.end_tokens.tolist(), strict=True))
        assert told([change for change in changes if change.tier is tier]) == known
    rig.tiers.leave(listener)


def test_a_listener_that_does_not_read_is_told_so(make_rig: MakeRig) -> None:
    rig = make_rig()
    listener = rig.tiers.listen(limit=2)
    for first in range(0, 12, 2):
        rig.store(first, first + 2)
    assert listener.drain().lost
    assert not listener.drain().lost


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
    time.sleep(0.1)
    assert ticket.progress() == (Phase.EXPIRED, 0, False)
    rig.disk.works.set()
    assert ticket.wait(5).settled


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"page_tokens": 0}, "page_tokens"),
        ({"page_bytes": 0}, "page_bytes"),
        ({"threshold": -1}, "threshold"),
        ({"look_seconds": 0.0}, "look_seconds"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Settings(**({"page_tokens": 16, "page_bytes": PAGE_BYTES} | settings))  # type: ignore[arg-type]


def test_a_hierarchy_of_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="at least one tier"):
        Hierarchy(Settings(page_tokens=16, page_bytes=PAGE_BYTES), None)
