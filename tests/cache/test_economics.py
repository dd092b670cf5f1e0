import pytest

from cache.economics import PROBE_SECONDS, Costs, Learned, Priors
from cache.errors import SettingsError
from cache.tiers.base import Tier


def test_one_outlier_changes_nothing() -> None:
    rate = Learned(1.0)
    for _ in range(20):
        rate.add(0.1)
    rate.add(1000.0)
    assert rate.value == 0.1


def test_a_real_change_is_learned() -> None:
    rate = Learned(1.0)
    for _ in range(4):
        rate.add(0.5)
    assert rate.value == 0.5
    for _ in range(20):
        rate.add(8.0)
    assert rate.value == 8.0


def test_loads_take_waves_of_readers() -> None:
    costs = Costs(1000, {Tier.SSD: 4}, Priors(bytes_per_second={Tier.SSD: 4000.0}))
    assert costs.load_seconds(Tier.SSD, 4) == pytest.approx(1.0)
    assert costs.load_seconds(Tier.SSD, 5) == pytest.approx(2.0)
    assert costs.load_seconds(Tier.SSD, 1, backlog=8) == pytest.approx(3.0)
    assert costs.page_rate(Tier.SSD) == pytest.approx(4.0)


def test_a_clock_too_coarse_teaches_nothing() -> None:
    costs = Costs(1000, {Tier.SSD: 4}, Priors(bytes_per_second={Tier.SSD: 4000.0}))
    for _ in range(9):
        costs.saw_load(Tier.SSD, 0.0)
    costs.saw_load(Tier.SSD, 0.0, probe=True)
    assert costs.page_rate(Tier.SSD) == pytest.approx(4.0)


def test_failures_make_no_tier_fast() -> None:
    """A store that is out of reach refuses each page in microseconds."""
    costs = Costs(1000, {Tier.SHARED: 4}, Priors(bytes_per_second={Tier.SHARED: 4000.0}))
    for _ in range(31):
        costs.saw_failure(Tier.SHARED, 0.00001)
    assert costs.page_rate(Tier.SHARED) == pytest.approx(4.0)
    for _ in range(9):
        costs.saw_failure(Tier.SHARED, 5.0)
    assert costs.page_rate(Tier.SHARED) == pytest.approx(0.8)


def test_prefill_is_learned_per_token() -> None:
    costs = Costs(1000, {}, Priors(prefill_tokens_per_second=1000.0))
    assert costs.recompute_seconds(500) == pytest.approx(0.5)
    for _ in range(9):
        costs.saw_prefill(100, 0.2)
    costs.saw_prefill(0, 1.0)
    assert costs.prefill_rate == pytest.approx(500.0)


def test_a_probe_is_believed_at_once_and_not_too_often() -> None:
    now = [50.0]
    costs = Costs(1000, {Tier.SSD: 1}, Priors(), clock=lambda: now[0])
    for _ in range(31):
        costs.saw_load(Tier.SSD, 9.0)
    assert [costs.probe_due(Tier.SSD), costs.probe_due(Tier.SSD)] == [True, False]
    costs.saw_load(Tier.SSD, 0.1, probe=True)
    assert costs.load_seconds(Tier.SSD, 1) == pytest.approx(0.1)
    now[0] += PROBE_SECONDS
    assert costs.probe_due(Tier.SSD)


def test_priors_must_be_positive() -> None:
    with pytest.raises(SettingsError, match="positive"):
        Priors(prefill_tokens_per_second=0)
