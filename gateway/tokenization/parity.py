"""Proof that our ids are the engine's: what was compared, and what it showed."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gateway.tokenization.results import TokenIds

# Live traffic counts against a model if more than one of its last comparisons differed: a single one may be a
# template that writes the date, at midnight.
_WINDOW = 32
_TOLERATED = 1


class Verdict(StrEnum):
    """What is known of a model's parity with its engine."""

    UNCHECKED = "unchecked"  # nothing compared yet
    AGREES = "agrees"
    DISAGREES = "disagrees"
    UNPROVEN = "unproven"  # the engine couldn't be asked; predicted and reported cached tokens still tell


@dataclass(frozen=True, slots=True)
class Difference:
    """Where ours and the engine's ids part: no text, for it is shown in logs."""

    case: str
    index: int
    our_length: int
    engine_length: int

    def __str__(self) -> str:
        lengths = f"{self.our_length} tokens here, {self.engine_length} in the engine"
        return f"{self.case}: the prompts differ from token {self.index} on ({lengths})"


class Parity:
    """One model's comparisons. `compared` and `differed` count them all; `first` is the first difference."""

    def __init__(self) -> None:
        self.compared = 0
        self.differed = 0
        self.first: Difference | None = None
        self._start = Verdict.UNCHECKED
        self._live: deque[bool] = deque(maxlen=_WINDOW)

    @property
    def verdict(self) -> Verdict:
        """What the last check at start and the latest live comparisons say together."""
        if self._live.count(False) > _TOLERATED:
            return Verdict.DISAGREES
        return self._start

    @property
    def disagrees(self) -> bool:
        """Whether the model's ids must not be used."""
        return self.verdict is Verdict.DISAGREES

    def __str__(self) -> str:
        first = f"; first: {self.first}" if self.first else ""
        return f"{self.verdict}, {self.differed} of {self.compared} comparisons differed{first}"

    def settle(self, agreed: list[bool]) -> None:
        """End a check at start: each of its comparisons agreed or not. Earlier live ones no longer count."""
        self._live.clear()
        if agreed:
            self._start = Verdict.AGREES if all(agreed) else Verdict.DISAGREES
        else:
            self._start = Verdict.UNPROVEN

    def live(self, ours: TokenIds, engines: TokenIds) -> bool:
        """Count a comparison on live traffic, and return whether it agreed."""
        agreed = self.compare("live", ours, engines)
        self._live.append(agreed)
        return agreed

    def compare(self, case: str, ours: TokenIds, engines: TokenIds) -> bool:
        """Count a comparison, and return whether it agreed."""
        agreed = np.array_equal(ours, engines)
        self.compared += 1
        if not agreed:
            self.differed += 1
            if self.first is None:
                self.first = Difference(case, _first_difference(ours, engines), len(ours), len(engines))
        return agreed


def _first_difference(ours: TokenIds, engines: TokenIds) -> int:
    shared = min(len(ours), len(engines))
    differing: Iterator[int] = iter(np.flatnonzero(ours[:shared] != engines[:shared]))
    return int(next(differing, shared))
