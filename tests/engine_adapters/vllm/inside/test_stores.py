from cache.testing import SPACE, content
from cache.tiers.base import Tier
from engine_adapters.vllm.inside.stores import NOTHING, Stores, Wanted
from tests.cache.build import Rig, keys
from tests.cache.conftest import MakeRig
from tests.engine_adapters.vllm.inside.build import request


def begin(stores: Stores, start: int, stop: int) -> Wanted:
    return stores.begin(request(), keys(start, stop), range(start, stop))


def fill(rig: Rig, wanted: Wanted) -> None:
    assert rig.host is not None
    for key, slot in zip(wanted.keys, wanted.slots, strict=True):
        rig.host.page(slot)[:] = content(keys(0, 64).index(key))


def test_stored_pages_are_visible_once_they_are_whole(make_rig: MakeRig) -> None:
    rig = make_rig()
    stores = Stores(rig.tiers)
    wanted = begin(stores, 0, 3)
    assert wanted.keys == keys(0, 3)
    assert rig.where(0, 3) == []
    fill(rig, wanted)
    stores.end(reversed(keys(0, 3)), good=True)
    rig.check(0, 3)
    assert begin(stores, 0, 4).keys == keys(3, 4), "the others are there"


def test_a_failed_store_is_invisible(make_rig: MakeRig) -> None:
    rig = make_rig()
    stores = Stores(rig.tiers)
    begin(stores, 0, 3)
    stores.end(keys(0, 3), good=False)
    assert rig.where(0, 3) == []
    assert rig.tiers.activity() == (0, 0, 0)


def test_no_room_drops_the_pages_furthest_from_the_start(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4)
    rig.store(10, 12)
    lease = rig.tiers.pin(rig.tiers.match(SPACE, keys(10, 12)), 60)
    assert begin(Stores(rig.tiers), 0, 4).keys == keys(0, 2)
    assert rig.tiers.statistics().tiers[Tier.HOST].drops == 2
    rig.tiers.unpin(lease)


def test_without_a_namespace_nothing_is_stored(make_rig: MakeRig) -> None:
    stores = Stores(make_rig().tiers)
    assert stores.begin(request(namespace=None), keys(0, 1), [0]) == NOTHING


def test_slots_of_forgotten_copies_stay_taken_until_they_end(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4)
    stores = Stores(rig.tiers)
    begin(stores, 0, 3)
    stores.orphan()
    rig.tiers.clear(Tier.HOST)
    stores.end(keys(0, 3), good=True)
    assert len(begin(stores, 4, 8).slots) == 1
    stores.flushed()
    assert len(begin(stores, 8, 12).slots) == 3
    assert rig.where(0, 3) == []
