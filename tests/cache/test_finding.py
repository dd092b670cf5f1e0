"""What is found, and where: spans over the tiers, gaps, slow look-ups."""

import time

import pytest

from cache.testing import BASE, SPACE
from cache.tiers.base import Tier, Usage
from tests.cache.build import keys
from tests.cache.conftest import MakeRig
from tests.cache.remote import Remote


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


def test_a_slow_remote_look_up_is_not_waited_for(make_rig: MakeRig) -> None:
    rig = make_rig(more=[Remote(range(10), look_seconds=0.5)])
    rig.store(0, 3)
    begin = time.monotonic()
    late = rig.tiers.look(SPACE, keys(0, 10), seconds=0.1)
    assert late.wait().pages == 3
    assert time.monotonic() - begin < 0.3
    assert (late.match().pages, late.complete) == (3, False)
    assert rig.tiers.statistics().looks_expired == 1, "a look-up expires once, however often it is asked"
    look = rig.tiers.look(SPACE, keys(0, 10), seconds=5)
    assert look.pending
    assert (look.wait().pages, look.complete) == (10, True)
    assert rig.tiers.look(SPACE, keys(0, 3)).complete


def test_a_store_that_is_out_of_reach_has_not_answered(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote()
    rig = make_rig(more=[remote])
    monkeypatch.setattr(remote, "usage", lambda: Usage(0, 0, 0, available=False))
    look = rig.tiers.look(SPACE, keys(0, 10), seconds=5)
    assert (look.wait().pages, look.complete) == (0, False)


def test_nor_has_one_at_which_many_look_ups_wait(make_rig: MakeRig) -> None:
    remote = Remote(look_seconds=0.3)
    rig = make_rig(more=[remote])
    looks = [rig.tiers.look(SPACE, keys(0, 10), seconds=5) for _ in range(20)]
    assert not looks[-1].pending
    assert not looks[-1].complete
    remote.look_seconds = 0.0
    looks[0].wait()
    assert looks[0].complete


def test_other_namespaces_see_nothing(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 4)
    rig.tiers.drain(5)
    assert rig.tiers.match(BASE.namespace(lora="x"), keys(0, 4)).pages == 0
