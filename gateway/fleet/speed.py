"""How fast a replica prefills, learned from what its requests took."""

from collections import deque

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_WINDOW = 64
"""Latest requests that count. A replica's speed changes with its load, so older ones mislead."""

_PRIOR_TOKENS_PER_S = 5000.0
"""Before anything was measured: between a small model on a CPU and a large one on a GPU."""

_FIT_EVERY = 8
"""A fit costs some 60 µs, and in a full window one request hardly moves it."""

_TRUSTED_FROM = 8
_TRUSTED_FOR_S = 60.0
"""A replica that looked slow once, cold or busy, would never be asked again and never look better. Until so
many requests were seen, and when the last was so long ago, it counts as no slower than its peers."""

_SPREAD = 4.0
"""Longest over shortest prefill in the window from which on a slope can be told from noise."""


class PrefillSpeed:
    """TTFT = overhead + tokens / rate, fitted to the latest requests.

    The fit is Theil and Sen's: the slope is the median of the slopes between all pairs, the overhead the
    median of what it leaves. Up to 29 % of the requests may be arbitrary (a pause, a neighbour) without
    moving it far.

    Attributes:
        rate: tokens a second.
        overhead_s: what a request takes with nothing to prefill.
    """

    def __init__(self) -> None:
        self.rate = _PRIOR_TOKENS_PER_S
        self.overhead_s = 0.0
        self._tokens: deque[int] = deque(maxlen=_WINDOW)
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._seen = 0
        self._last = 0.0

    def trusted(self, now: float) -> bool:
        """Whether enough was seen lately to tell it from others; `now` as `time.monotonic` has it."""
        return self._seen >= _TRUSTED_FROM and now - self._last < _TRUSTED_FOR_S

    @property
    def measured(self) -> bool:
        """Whether any request was seen."""
        return self._seen > 0

    def observe(self, tokens: int, seconds: float, now: float = 0.0) -> None:
        """A first token came after `seconds` with `tokens` to prefill, those queued ahead included."""
        if tokens <= 0 or seconds <= 0:
            return
        self._last = now
        self._tokens.append(tokens)
        self._seconds.append(seconds)
        self._seen += 1
        if self._seen <= 16 or self._seen % _FIT_EVERY == 0:
            self._fit()

    def seconds(self, tokens: int) -> float:
        """How long this many tokens take, without the overhead."""
        return tokens / self.rate

    def _fit(self) -> None:
        tokens = np.array(self._tokens, dtype=np.float64)
        seconds = np.array(self._seconds)
        slope = _slope(tokens, seconds)
        if slope is None:
            # All alike: the overhead can't be told from the rate, and together they predict the same.
            self.rate, self.overhead_s = float(1 / np.median(seconds / tokens)), 0.0
            return
        self.rate = 1 / slope
        self.overhead_s = max(0.0, float(np.median(seconds - slope * tokens)))


def _slope(tokens: Floats, seconds: Floats) -> float | None:
    """Seconds a token, or None where the window can't tell."""
    if len(tokens) < 2 or tokens.max() < _SPREAD * tokens.min():
        return None
    first, second = np.triu_indices(len(tokens), 1)
    run = tokens[second] - tokens[first]
    apart = run != 0
    slope = float(np.median((seconds[second] - seconds[first])[apart] / run[apart]))
    return slope if slope > 0 else None
