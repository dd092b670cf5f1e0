"""The tiers as one: thresholds, pins, clears, what is told, settings."""

import shutil
import time
from pathlib import Path

import pytest

from cache.errors import FolderError, SettingsError
from cache.hierarchy import Hierarchy
from cache.plan import Reason
from cache.state import Settings
from cache.testing import PAGE_BYTES, SPACE, pages, told
from cache.tiers.base import Tier
from cache.tiers.lane import Width
from cache.tiers.slots import ABSENT
from tests.cache.build import keys, wait_for
from tests.cache.conftest import MakeRig
from tests.cache.remote import Remote


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
    wait_for(lambda: len(rig.tiers._state.leases) == 0)
    rig.store(60, 68)
    assert rig.tiers.slots(SPACE, keys(0, 4)) == [ABSENT] * 4


def test_the_threshold_and_what_the_engine_has(make_rig: MakeRig) -> None:
    rig = make_rig(threshold=64)
    rig.store(0, 8)
    assert rig.plan(0, 3).reason is Reason.THRESHOLD
    assert rig.plan(0, 4).pages == 4
    assert rig.plan(0, 8, computed=5 * 16).reason is Reason.THRESHOLD
    assert rig.plan(0, 8, computed=4 * 16).pages == 4
    assert rig.plan(0, 8, computed=8 * 16).reason is Reason.MISS
    assert rig.tiers.statistics().refused_by_threshold == 3 + 3


def test_clear_a_tenant(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16)
    rig.store(0, 4, tenant=7)
    rig.store(10, 14, tenant=8)
    rig.tiers.drain(5)
    assert rig.tiers.clear(tenant=7) == 8
    assert rig.where(0, 4) == []
    assert rig.where(10, 14) == [(Tier.HOST, 4)]


def test_a_store_that_refuses_a_clear_keeps_no_other_from_it(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(more=[shared := Remote(range(4))])
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder)
    with pytest.raises(FolderError, match="No such file"):
        rig.tiers.clear()
    assert not shared.pages


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


def test_a_clear_frees_what_was_only_kept(make_rig: MakeRig) -> None:
    """Pins and prefetches keep no slot of a page that is gone; whoever is about to copy one does."""
    rig = make_rig(slots=9)
    rig.store(0, 9)
    rig.tiers.drain(5)
    pin = rig.tiers.pin(rig.tiers.match(SPACE, keys(0, 5)), 60)
    prefetch = rig.load(5, 7, seconds=60, prefetch=True)
    plan = rig.plan(8, 9)
    load = rig.tiers.load(plan, pages(8, 9))
    assert rig.tiers.claim(load, plan)
    assert prefetch.progress().ready == 2
    assert rig.tiers.clear(Tier.HOST) == 9
    assert prefetch.progress().ready == 0
    assert rig.store(20, 29) == 8
    rig.tiers.audit()
    rig.check(20, 28)
    load.release()
    assert rig.tiers.drain(5)
    assert rig.store(30, 39) == 9
    rig.check(30, 39)
    prefetch.release()
    rig.tiers.unpin(pin)
    assert rig.tiers.drain(5)
    assert rig.tiers.activity() == (0, 0, 0)


def test_a_clear_of_one_tenant_leaves_what_is_kept_for_others(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16)
    rig.store(0, 4, tenant=1)
    rig.store(4, 8, tenant=2)
    rig.tiers.drain(5)
    one, two = (rig.load(start, start + 4, seconds=60, prefetch=True) for start in (0, 4))
    rig.tiers.clear(Tier.HOST, tenant=1)
    assert (one.progress().ready, two.progress().ready) == (0, 4)
    assert rig.store(20, 36) == 12
    rig.check(4, 8)
    one.release()
    two.release()


def test_a_clear_drops_what_waits_to_be_written(make_rig: MakeRig) -> None:
    """Of pages still in `host` too: whose they are is only sure once they are looked at again."""
    running = Width().writers
    count = running + 6
    rig = make_rig(slots=count)
    rig.disk.works.clear()
    rig.store(0, count)
    waiting = rig.tiers._state.lanes[Tier.SSD]._writes._urgent
    wait_for(lambda: len(waiting) == count - running)
    rig.tiers.clear(Tier.HOST, tenant=99)
    rig.disk.works.set()
    assert rig.tiers.drain(5)
    assert rig.ssd.usage().pages == running, "those that were under way"
    rig.check(0, count)


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
