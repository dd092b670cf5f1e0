"""Pages on their way in and down: room, write policies, admission, failed copies."""

from cache.hierarchy import Hierarchy
from cache.keys import Page
from cache.memory import allocate
from cache.policies import Back, SecondTouch, Selective
from cache.state import Level, Settings
from cache.testing import PAGE_BYTES, SPACE, content, key, pages
from cache.tiers.base import Tier
from cache.tiers.host import Host
from cache.tiers.slots import ABSENT
from tests.cache.build import keys
from tests.cache.conftest import MakeRig
from tests.cache.remote import Remote


def test_a_used_page_outlives_an_unused_one(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.store(0, 4)
    rig.store(10, 14)
    rig.loaded(0, 4)
    rig.tiers.drain(5)
    rig.store(20, 24)
    assert rig.tiers.slots(SPACE, keys(10, 14)) == [ABSENT] * 4
    rig.check(0, 4)


def test_pages_used_in_the_engines_own_cache_outlive_others(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4)
    rig.store(0, 2)
    rig.store(2, 4)
    rig.tiers.touch(SPACE, keys(0, 2))
    assert rig.tiers.drain(5)  # what is being written is held
    rig.store(4, 6)
    assert rig.tiers.slots(SPACE, keys(2, 4)) == [ABSENT, ABSENT]
    assert ABSENT not in rig.tiers.slots(SPACE, keys(0, 2))


def test_what_is_hot_in_host_stays_in_ssd_too(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16, cap=256 << 10)
    rig.store(0, 4)
    for first in range(100, 148, 4):
        rig.store(first, first + 4)
        rig.tiers.drain(5)
        rig.loaded(0, 4)
    assert rig.ssd.usage().evictions > 30
    assert rig.ssd.find(SPACE, keys(0, 4)) == [True] * 4


def test_pages_with_numbers_out_of_range_are_dropped_and_leak_no_slot(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4)
    good, bad = pages(0, 2), [Page(key(9), 1 << 64, 16), Page(key(8), 1, 1 << 32), Page(key(7), 1, -1)]
    for _ in range(3):
        reservation = rig.tiers.reserve(SPACE, [good[0], *bad, good[1]])
        assert reservation.dropped == 3
        rig.tiers.commit(reservation)
        rig.tiers.clear(Tier.HOST)
    assert rig.store(0, 4) == 4
    rig.tiers.audit()


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


def test_what_write_back_has_put_off_is_written_at_the_end(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16, write=Back())
    rig.store(0, 8)
    assert rig.ssd.find(SPACE, keys(0, 8)) == [False] * 8
    assert rig.tiers.flush(10)
    assert rig.ssd.find(SPACE, keys(0, 8)) == [True] * 8
    assert rig.tiers.statistics().tiers[Tier.SSD].stored == 8
    assert rig.tiers.flush(10)
    assert rig.tiers.statistics().tiers[Tier.SSD].stored == 8


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


def test_a_second_commit_does_not_touch_slots_that_are_others_by_now(make_rig: MakeRig) -> None:
    rig = make_rig(slots=2)
    first = rig.tiers.reserve(SPACE, pages(0, 2))
    assert rig.tiers.commit(first, [False, False]) == 0
    second = rig.tiers.reserve(SPACE, pages(2, 4))
    assert set(second.slots) == set(first.slots)
    assert rig.tiers.commit(first, [False, False]) == 0
    assert rig.tiers.commit(second) == 2
    assert rig.tiers.commit(second) == 0
    rig.tiers.audit()


def test_a_tier_that_is_not_here_has_no_snapshot(make_rig: MakeRig) -> None:
    assert make_rig().tiers.snapshot(Tier.SHARED) is None
