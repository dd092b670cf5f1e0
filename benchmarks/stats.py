"""What a benchmark may say about repeated measurements: medians, and intervals that hold for the median."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """A median, and the interval in which the true median lies."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> tuple[float, float]:
        """The interval's two ends, as `Report.add` takes them."""
        return self.low, self.high


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Median with its distribution-free interval between two order statistics.

    The k-th smallest and k-th largest of n values enclose the median with probability
    1 - 2 · P(Binomial(n, 1/2) < k). Below six values no pair reaches 95 %: their whole range is given.
    """
    if not values:
        raise ValueError("no values: run at least one repeat")
    ordered = sorted(values)
    n = len(ordered)
    outside = 0.0
    k = 0
    while True:
        outside += 2 * math.comb(n, k) / 2**n
        if outside > 1 - confidence or k + 1 > n // 2:
            break
        k += 1
    k = max(k, 1)
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[n - k])


def paired_ratios(ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95) -> Interval:
    """Median and interval of ours[i] / theirs[i]: each pair was measured side by side, so drift cancels."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} values cannot be paired with {len(theirs)}: interleave the repeats")
    return median_interval([a / b for a, b in zip(ours, theirs, strict=True)], confidence)
