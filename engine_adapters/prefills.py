"""How fast an engine computes prompts, from the steps it makes."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cache.economics import Priors

CPU_PRIORS = Priors(prefill_tokens_per_second=500.0)
"""What a small model does on a few cores: else the first pages would be computed that are better loaded."""
LEAST_TOKENS = 64
"""Steps with fewer prompt tokens say more about decoding."""


class Prefill(NamedTuple):
    """A measurement."""

    tokens: int
    seconds: float


class Prefills:
    """Steps from their scheduling to their output. They end in the order in which they began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: deque[tuple[int, float]] = deque()
        self._free_at = 0.0

    def begin(self, tokens: int) -> None:
        """A step with so many prompt tokens was scheduled."""
        self._begun.append((tokens, self._clock()))

    def end(self) -> Prefill | None:
        """The oldest step's output is there. None if it tells nothing about prompts."""
        if not self._begun:
            return None
        return self.ended(*self._begun.popleft())

    def ended(self, tokens: int, begun: float) -> Prefill | None:
        """The output of a step is there that was scheduled at `begun`, by the same clock; as `end`."""
        now = self._clock()
        seconds = now - max(begun, self._free_at)  # steps that were scheduled ahead ran one after the other
        self._free_at = now
        return Prefill(tokens, seconds) if tokens >= LEAST_TOKENS else None
