"""The end of a prefix, and with how many questions it is found."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.stores.presence import Hint
from cache.stores.search import FAN, leading

UNKNOWN = Hint.UNKNOWN


class Asked:
    """A store that has the first `there` pages, but for the holes."""

    def __init__(self, there: int, holes: Sequence[int] = ()) -> None:
        self.there, self.holes = there, holes
        self.rounds = 0
        self.questions = 0

    def __call__(self, places: list[int]) -> list[bool]:
        assert places == sorted(set(places))
        self.rounds += 1
        self.questions += len(places)
        return [place < self.there and place not in self.holes for place in places]


@given(count=st.integers(0, 5000), data=st.data())
def test_finds_the_end_of_any_prefix(count: int, data: st.DataObject) -> None:
    there = data.draw(st.integers(0, count))
    asked = Asked(there)
    assert leading([UNKNOWN] * count, asked) == there
    assert asked.questions <= 3 * FAN


@pytest.mark.parametrize("there", [0, 1, 31, 500, 999, 1000])
def test_a_thousand_pages_take_two_rounds(there: int) -> None:
    asked = Asked(there)
    leading([UNKNOWN] * 1000, asked)
    assert asked.rounds <= 2
    assert asked.questions <= 2 * FAN


def test_short_prompts_are_exact() -> None:
    assert leading([UNKNOWN] * FAN, Asked(FAN, holes=[17])) == 17


def test_what_is_known_is_not_asked_for() -> None:
    asked = Asked(1000)
    assert leading([Hint.THERE] * 1000, asked) == 1000
    assert leading([UNKNOWN] * 999 + [Hint.THERE], asked) == 1000
    assert leading([Hint.GONE] + [UNKNOWN] * 999, asked) == 0
    assert leading([UNKNOWN, Hint.THERE, Hint.GONE, Hint.THERE], asked) == 2
    assert asked.rounds == 0
    assert leading([Hint.THERE] * 10 + [UNKNOWN] * 20 + [Hint.GONE], asked) == 30
    assert (asked.rounds, asked.questions) == (1, 20)
