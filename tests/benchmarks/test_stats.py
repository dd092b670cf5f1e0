import pytest

from benchmarks.stats import Interval, median_interval, paired_ratios


def test_few_values_give_their_whole_range() -> None:
    assert median_interval([3, 1, 2]) == Interval(2, 1, 3)


def test_the_interval_of_more_values_leaves_the_outliers_out() -> None:
    # n = 10: P(Binomial(10, 1/2) <= 1) = 11 / 1024, so the 2nd and 9th values enclose the median with 97.9 %.
    assert median_interval([100, *range(1, 9), -100]) == Interval(4.5, 1, 8)


def test_a_higher_confidence_gives_a_wider_interval() -> None:
    assert median_interval(range(20), 0.99).low < median_interval(range(20), 0.5).low


def test_drift_that_both_sides_share_cancels_in_paired_ratios() -> None:
    assert paired_ratios([2, 4, 8], [1, 2, 4]) == Interval(2, 2, 2)


def test_unequal_numbers_of_repeats_are_refused() -> None:
    with pytest.raises(ValueError, match="interleave"):
        paired_ratios([1], [1, 2])


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        median_interval([])
