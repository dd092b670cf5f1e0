"""Each key's share."""

import pytest

from gateway.errors import RateLimited
from gateway.prefetch.holdings import Holdings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pins(clock: Clock) -> Holdings[str]:
    return Holdings("pins", 2, 100, clock)


def ask(pins: Holdings[str], owner: str, name: str, tokens: int = 10, seconds: float = 60) -> None:
    with pins.asking(owner, name, name, tokens, seconds):
        pass


def test_a_key_has_room_for_so_many(pins: Holdings[str], clock: Clock) -> None:
    ask(pins, "a", "1", seconds=30)
    ask(pins, "a", "2")
    with pytest.raises(RateLimited) as refused:
        ask(pins, "a", "3")
    assert refused.value.headers == ((b"retry-after", b"30"),)
    ask(pins, "a", "2")  # the same again is no other
    ask(pins, "b", "1")
    clock.now = 31
    ask(pins, "a", "3")


def test_and_for_so_many_tokens(pins: Holdings[str]) -> None:
    ask(pins, "a", "1", 60)
    with pytest.raises(RateLimited, match="60 tokens"):
        ask(pins, "a", "2", 41)
    ask(pins, "a", "2", 40)
    with pytest.raises(RateLimited):
        ask(pins, "b", "1", 101)


def test_what_is_still_being_asked_for_takes_room(pins: Holdings[str]) -> None:
    with pins.asking("a", "1", "", 60, 60), pytest.raises(RateLimited):
        ask(pins, "a", "2", 60)


def test_what_fails_leaves_all_as_it_was(pins: Holdings[str]) -> None:
    pins.hold("a", "1", "first", 10, 60)
    for name in ("1", "2"):
        with pytest.raises(OSError, match="no"), pins.asking("a", name, "second", 10, 60):
            raise OSError("no")
    assert (pins.drop("a", "1"), pins.drop("a", "2")) == ("first", None)


def test_equal_ones_at_once_end_each_in_its_own_way(pins: Holdings[str]) -> None:
    """The order in which they fail leaves nothing behind, and takes nothing from one that doesn't."""
    for fail_first in (True, False):
        one, two = (pins.asking("a", "1", what, 60, 60) for what in ("one", "two"))
        one.__enter__()
        two.__enter__()
        assert (pins.get("a", "1"), pins.left_s("1", "b")) == (None, 60)
        for asking in (one, two) if fail_first else (two, one):
            asking.__exit__(OSError, OSError("no"), None)
        assert (pins.get("a", "1"), pins.left_s("1", "b")) == (None, 0)
    one, two = (pins.asking("a", "1", what, 60, 60) for what in ("one", "two"))
    one.__enter__()
    two.__enter__()
    two.__exit__(None, None, None)
    one.__exit__(OSError, OSError("no"), None)
    assert pins.get("a", "1") == "two"


def test_one_owners_is_not_anothers(pins: Holdings[str], clock: Clock) -> None:
    ask(pins, "a", "1", seconds=50)
    assert pins.drop("b", "1") is None
    assert (pins.left_s("1", "b"), pins.left_s("1", "a"), pins.left_s("2", "b")) == (50, 0, 0)
    clock.now = 51
    assert pins.left_s("1", "b") == 0
    assert pins.drop("a", "1") is None
