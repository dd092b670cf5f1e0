from cache.residency import Residency
from cache.tiers.base import Change, Tier


def change(number: int) -> Change:
    return Change(Tier.HOST, True, [(number, 16)])


def test_listeners_get_every_change_from_then_on_in_order() -> None:
    residency = Residency()
    residency.record(change(0))
    one, two = residency.listen(), residency.listen()
    residency.record(change(1))
    residency.leave(two)
    residency.leave(two)
    residency.record(change(2))
    assert [told.sequence for told in one.drain().changes] == [2, 3]
    assert [told.change for told in two.drain().changes] == [change(1)]
    assert one.drain() == ([], False)
    assert residency.sequence == 3


def test_what_is_lost_is_told_once() -> None:
    residency = Residency()
    listener = residency.listen(limit=2)
    for number in range(4):
        residency.record(change(number))
    drained = listener.drain()
    assert ([told.sequence for told in drained.changes], drained.lost) == ([1, 2], True)
    residency.record(change(9))
    assert ([told.sequence for told in listener.drain().changes], listener.drain().lost) == ([5], False)
