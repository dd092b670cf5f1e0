from cache.testing import PAGE_BYTES
from cache.tiers.base import Tier
from engine_adapters import metrics
from tests.cache.conftest import MakeRig, make_rig

__all__ = ["make_rig"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_growth_is_told_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    meter = metrics.Meter(rig.tiers, 16, PAGE_BYTES, Clock())
    rig.store(0, 4)
    assert rig.tiers.drain(5)
    growth = meter.take()
    assert growth is not None
    assert growth.counters["hpkv_stored_tokens", ("host",)] == 4 * 16
    assert growth.counters["hpkv_stored_bytes", ("ssd",)] == 4 * PAGE_BYTES
    assert growth.gauges["hpkv_tier_bytes", ("host",)] == 4 * PAGE_BYTES
    assert len(growth.observations["hpkv_write_seconds", ("ssd",)]) == 4
    assert meter.take() is None
    rig.loaded(0, 6)
    meter.loaded[Tier.HOST] += 4
    growth = meter.take()
    assert growth is not None
    assert growth.counters == {
        ("hpkv_hit_tokens", ("host",)): 64,
        ("hpkv_missed_tokens", ()): 32,
        ("hpkv_loaded_tokens", ("host",)): 64,
        ("hpkv_loaded_bytes", ("host",)): 4 * PAGE_BYTES,
    }


def test_a_lease_is_seen_to_come_and_go(make_rig: MakeRig) -> None:
    rig = make_rig()
    meter = metrics.Meter(rig.tiers, 16, PAGE_BYTES, Clock())
    rig.store(0, 4)
    assert rig.tiers.drain(5)
    ticket = rig.load(0, 4)
    growth = meter.take()
    assert growth is not None
    assert growth.gauges["hpkv_held_pages", ()] == 4
    ticket.release()
    growth = meter.take()
    assert growth is not None
    assert (growth.counters, growth.gauges["hpkv_held_pages", ()]) == ({}, 0)


def test_questions_in_quick_succession_are_put_off_until_nobody_asks_any_more(make_rig: MakeRig) -> None:
    rig = make_rig()
    meter = metrics.Meter(rig.tiers, 16, PAGE_BYTES)
    assert meter.take() is not None
    assert not meter.hasten()
    rig.store(0, 1)
    assert meter.take() is None
    assert meter.hasten()
    growth = meter.take()
    assert growth is not None
    assert growth.counters["hpkv_stored_tokens", ("host",)] == 16
    assert not meter.hasten()


def test_every_value_has_a_definition(make_rig: MakeRig) -> None:
    rig = make_rig()
    meter = metrics.Meter(rig.tiers, 16, PAGE_BYTES, Clock())
    meter.errors += 1
    rig.store(0, 2)
    assert rig.tiers.drain(5)
    growth = meter.take()
    assert growth is not None
    known = metrics.COUNTERS | metrics.GAUGES
    for name, labels in [*growth.counters, *growth.gauges]:
        assert len(known[name][1]) == len(labels)
    assert {name for name, _ in growth.observations} <= set(metrics.HISTOGRAMS)
