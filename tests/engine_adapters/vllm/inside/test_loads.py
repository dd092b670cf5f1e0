"""One request's way up, over real tiers."""

import time
from pathlib import Path

import pytest

from cache.testing import SPACE, content
from cache.tiers.base import Tier
from engine_adapters.vllm.inside.loads import Answer, Load
from tests.cache.build import Rig, keys
from tests.cache.conftest import MakeRig
from tests.cache.remote import Remote
from tests.engine_adapters.vllm.inside.build import load_of, request


def ready(load: Load, pages: int, computed: int = 0) -> list[Answer]:
    """Ask until it is known, then for each page."""
    deadline = time.monotonic() + 10
    while not load.plan(keys(0, pages), computed):
        assert load.answer(keys(0, pages)[-1]) is not Answer.READY
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return [load.answer(key) for key in keys(0, pages)]


def idle(rig: Rig) -> bool:
    assert rig.tiers.drain(5)
    rig.tiers.audit()
    return rig.tiers.activity() == (0, 0, 0)


def test_pages_in_host_are_ready_at_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    load = load_of(rig.tiers)
    assert load.plan(keys(0, 6), 0)
    assert [load.answer(key) for key in keys(0, 6)] == [Answer.READY] * 4 + [Answer.MISS] * 2
    assert load.copy(keys(0, 4)) == rig.tiers.slots(SPACE, keys(0, 4))
    load.copied()
    assert idle(rig)


def test_pages_in_ssd_are_waited_for(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    rig.drop_host()
    rig.disk.works.clear()
    load = load_of(rig.tiers)
    assert not load.plan(keys(0, 4), 0)
    assert load.answer(keys(0, 1)[0]) is Answer.WAIT
    rig.disk.works.set()
    assert ready(load, 4) == [Answer.READY] * 4
    assert load.source(keys(0, 1)[0]) is Tier.SSD
    load.release()
    assert idle(rig)


def test_one_question_is_decided_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    load = load_of(rig.tiers)
    for _ in range(5):
        assert ready(load, 4) == [Answer.READY] * 4
    assert rig.tiers.statistics().tickets == 1
    assert rig.tiers.statistics().tiers[Tier.HOST].hits == 4


def test_what_the_engine_has_is_not_loaded_but_used(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.store(0, 4)
    rig.store(4, 8)
    load = load_of(rig.tiers)
    assert ready(load, 4, computed=2 * 16) == [Answer.MISS] * 2 + [Answer.READY] * 2
    load.release()
    assert rig.tiers.drain(5)
    rig.store(8, 12)
    assert rig.where(0, 4) == [(Tier.HOST, 4)], "pages 0 and 1 were used in the engine's own cache"


def test_what_host_lost_in_front_is_no_gap_for_the_engine(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(2, 4)
    assert ready(load_of(rig.tiers), 4, computed=2 * 16) == [Answer.MISS] * 2 + [Answer.READY] * 2


def test_part_of_a_page_that_the_engine_has_is_no_gain(make_rig: MakeRig) -> None:
    rig = make_rig(threshold=32)
    rig.store(0, 2)
    assert ready(load_of(rig.tiers), 2, computed=1) == [Answer.MISS] * 2
    assert ready(load_of(rig.tiers), 2, computed=0) == [Answer.READY] * 2


def test_a_new_question_gets_a_new_plan(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    load = load_of(rig.tiers)
    assert ready(load, 4, computed=3 * 16).count(Answer.READY) == 1
    assert ready(load, 4, computed=0).count(Answer.READY) == 4
    assert rig.tiers.activity().leases == 1
    load.release()
    assert idle(rig)


def test_a_damaged_page_ends_the_load_before_it(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig()
    rig.store(0, 4)
    rig.drop_host()
    with (tmp_path / "cache/00/pages").open("r+b") as file:
        whole = file.read()
        file.seek(whole.index(content(2)))
        file.write(b"damaged!")
    answers = ready(load_of(rig.tiers), 4)
    assert rig.tiers.statistics().tiers[Tier.SSD].damaged == 1
    assert answers == [Answer.READY] * 2 + [Answer.MISS] * 2


def test_a_hung_disk_is_waited_for_until_the_deadline(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    rig.drop_host()
    rig.store(0, 1)
    rig.disk.works.clear()
    load, begun = load_of(rig.tiers, load_seconds=0.2), time.monotonic()
    assert ready(load, 4) == [Answer.READY] + [Answer.MISS] * 3
    assert 0.2 <= time.monotonic() - begun < 3 * 0.2
    load.release()
    rig.disk.works.set()
    assert idle(rig)


def waiting(rig: Rig, now: list[float]) -> Load:
    """A load that has 60 s by this clock, from a disk that hangs."""
    rig.store(0, 4)
    rig.drop_host()
    rig.disk.works.clear()
    load = Load(rig.tiers, request(), 16, 60.0, clock=lambda: now[0])
    assert not load.plan(keys(0, 4), 0)
    return load


def test_a_new_plan_has_no_new_time(make_rig: MakeRig) -> None:
    rig, now = make_rig(), [0.0]
    load = waiting(rig, now)
    now[0] = 61.0
    assert load.plan(keys(0, 4), 1)
    assert load.answer(keys(0, 4)[0]) is Answer.MISS
    load.release()
    rig.disk.works.set()


def test_a_request_that_ran_may_wait_anew(make_rig: MakeRig) -> None:
    """It was preempted, and comes again long after its first time was over."""
    rig, now = make_rig(), [0.0]
    load = waiting(rig, now)
    load.release()
    rig.disk.works.set()
    assert idle(rig)
    now[0] = 61.0
    assert ready(load, 4) == [Answer.READY] * 4
    load.release()


def test_a_remote_look_up_is_waited_for_too(make_rig: MakeRig) -> None:
    shared = Remote(range(4), look_seconds=0.02)
    rig = make_rig(more=[shared])
    load = load_of(rig.tiers)
    assert not load.plan(keys(0, 4), 0)
    assert ready(load, 4) == [Answer.READY] * 4
    assert load.source(keys(0, 1)[0]) is Tier.SHARED


def test_a_copy_keeps_its_pages_whatever_happens_meanwhile(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4)
    rig.store(0, 4)
    assert rig.tiers.drain(5)
    load = load_of(rig.tiers)
    ready(load, 4)
    load.copy(keys(0, 4))
    load.release()
    assert load.plan(keys(0, 2), 0), "a question meanwhile changes nothing"
    assert rig.store(4, 8) == 0
    rig.check(0, 4)
    load.copied()
    assert rig.store(4, 8) == 4


def test_a_request_that_ends_gives_a_load_under_way_back(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    rig.drop_host()
    rig.disk.works.clear()
    load = load_of(rig.tiers)
    assert not load.plan(keys(0, 4), 0)
    load.release()
    rig.disk.works.set()
    assert idle(rig)


@pytest.mark.parametrize("slots", [2, 3])
def test_more_than_host_holds(make_rig: MakeRig, slots: int) -> None:
    rig = make_rig(slots=slots)
    for number in range(4):
        rig.store(number, number + 1)
        assert rig.tiers.drain(5)
    assert ready(load_of(rig.tiers), 4).count(Answer.READY) == slots


def test_without_a_namespace_all_is_a_miss(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    load = Load(rig.tiers, request(namespace=None), 16, 5.0)
    assert ready(load, 4) == [Answer.MISS] * 4
