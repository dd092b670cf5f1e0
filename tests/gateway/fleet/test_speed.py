import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.speed import PrefillSpeed


def learned(rate: float, overhead_s: float, outliers: int = 0, count: int = 64) -> PrefillSpeed:
    rng = random.Random(1)
    speed = PrefillSpeed()
    for index in range(count):
        tokens = rng.randint(50, 4000)
        seconds = overhead_s + tokens / rate * rng.uniform(0.95, 1.05)
        if index % 8 < outliers:
            seconds *= rng.uniform(5, 50)
        speed.observe(tokens, seconds)
    return speed


@given(st.floats(100, 1e6), st.floats(0, 0.5))
def test_rate_and_overhead_are_told_apart(rate: float, overhead_s: float) -> None:
    speed = learned(rate, overhead_s)
    predicted = speed.overhead_s + speed.seconds(3000)
    assert predicted == pytest.approx(overhead_s + 3000 / rate, rel=0.1)
    assert speed.rate == pytest.approx(rate, rel=0.2) or overhead_s > 100 * 4000 / rate


def test_a_quarter_of_outliers_hardly_moves_it() -> None:
    speed = learned(2000, 0.05, outliers=2)
    assert speed.rate == pytest.approx(2000, rel=0.15)


def test_requests_of_one_length_give_a_rate_without_overhead() -> None:
    speed = PrefillSpeed()
    for _ in range(20):
        speed.observe(1000, 0.5)
    assert speed.rate == pytest.approx(2000)
    assert speed.overhead_s == 0


def test_it_follows_a_change() -> None:
    speed = learned(2000, 0.05)
    rng = random.Random(2)
    for _ in range(64):
        tokens = rng.randint(50, 4000)
        speed.observe(tokens, tokens / 500)
    assert speed.rate == pytest.approx(500, rel=0.05)


def test_one_request_is_enough_to_leave_the_prior() -> None:
    speed = PrefillSpeed()
    assert not speed.measured
    speed.observe(1000, 1.0)
    assert speed.measured
    assert speed.rate == pytest.approx(1000)


def test_nonsense_teaches_nothing() -> None:
    speed = PrefillSpeed()
    speed.observe(0, 1)
    speed.observe(10, 0)
    assert not speed.measured
