import pytest

from cache.errors import SettingsError
from cache.policies import Always, Back, SecondTouch, Selective, Through
from cache.testing import BASE, SPACE, key


def test_when_pages_are_offered() -> None:
    for policy, at_store, touches, before in (
        (Through(), True, [], False),
        (Back(), False, [], True),
        (Selective(), False, [2], False),
    ):
        assert policy.at_store() is at_store
        assert [count for count in range(1, 5) if policy.at_touch(count)] == touches
        assert policy.before_eviction() is before


def test_always() -> None:
    assert Always().admits(SPACE, key(1))


def test_second_touch_remembers_so_many() -> None:
    admission = SecondTouch(memory=2)
    assert [admission.admits(SPACE, key(n)) for n in (1, 2, 1, 2)] == [False, False, True, True]
    assert [admission.admits(SPACE, key(n)) for n in (1, 2, 3, 1)] == [False, False, False, False]
    assert not admission.admits(BASE.namespace(lora="x"), key(3))
    with pytest.raises(SettingsError, match="at least one page"):
        SecondTouch(0)
