"""What loading costs and what recomputing costs, learned while running."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cache.errors import SettingsError
from cache.tiers.base import Tier

_WINDOW = 31
PROBE_SECONDS = 10.0
"""How often a tier that was refused as too slow is tried with one page."""


@dataclass(frozen=True, slots=True)
class Priors:
    """What is believed before anything was measured."""

    prefill_tokens_per_second: float = 8000.0
    bytes_per_second: dict[Tier, float] = field(
        default_factory=lambda: {Tier.HOST: 8e9, Tier.SSD: 1e9, Tier.SHARED: 3e8}
    )

    def __post_init__(self) -> None:
        if self.prefill_tokens_per_second <= 0 or min(self.bytes_per_second.values()) <= 0:
            raise SettingsError("economics: the priors must be positive rates")


class Learned:
    """The median of the last 31 measurements, over a prior that counts as three of them.

    A median, so that one page that waited for a busy disk, or came from a cache, changes nothing.
    """

    def __init__(self, prior: float) -> None:
        self._seen: deque[float] = deque([prior] * 3, maxlen=_WINDOW)
        self._value = prior

    @property
    def value(self) -> float:
        """The present estimate."""
        return self._value

    def add(self, measured: float) -> None:
        """Learn from one measurement."""
        self._seen.append(measured)
        self._value = statistics.median(self._seen)

    def replace(self, measured: float) -> None:
        """Believe one measurement over all before it: what was learned no longer holds."""
        self._seen.clear()
        self.add(measured)


class Costs:
    """Seconds of one page's load by tier, and of one token's prefill.

    With `width` reads at a time and `backlog` pages queued before, n pages take
    `page_seconds * ceil((backlog + n) / width)`. Called with the hierarchy's lock held.
    """

    def __init__(
        self,
        page_bytes: int,
        widths: dict[Tier, int],
        priors: Priors,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._widths = widths
        self._token = Learned(1 / priors.prefill_tokens_per_second)
        self._page = {
            tier: Learned(page_bytes * width / priors.bytes_per_second[tier])
            for tier, width in widths.items()
        }
        self._probe_at: dict[Tier, float] = {}

    def recompute_seconds(self, tokens: int) -> float:
        """Prefill of so many tokens."""
        return tokens * self._token.value

    def load_seconds(self, tier: Tier, pages: int, backlog: int = 0) -> float:
        """Loading so many pages from a tier."""
        return self._page[tier].value * math.ceil((backlog + pages) / self._widths[tier])

    @property
    def prefill_rate(self) -> float:
        """Tokens/s."""
        return 1 / self._token.value

    def page_rate(self, tier: Tier) -> float:
        """Pages/s with all readers busy."""
        return self._widths[tier] / self._page[tier].value

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """An engine recomputed so many tokens."""
        if tokens > 0 and seconds > 0:
            self._token.add(seconds / tokens)

    def saw_load(self, tier: Tier, seconds: float, probe: bool = False) -> None:
        """One page was loaded, or given up after so many seconds."""
        if seconds <= 0:  # a clock too coarse says nothing
            return
        if probe:
            self._page[tier].replace(seconds)
        else:
            self._page[tier].add(seconds)

    def saw_failure(self, tier: Tier, seconds: float) -> None:
        """One page couldn't be loaded. A failure that comes at once doesn't make a tier fast."""
        if seconds > self._page[tier].value:
            self._page[tier].add(seconds)

    def probe_due(self, tier: Tier) -> bool:
        """Whether a tier just refused should be tried again with one page; if so, not again for 10 s."""
        now = self._clock()
        if now < self._probe_at.get(tier, 0.0):
            return False
        self._probe_at[tier] = now + PROBE_SECONDS
        return True
