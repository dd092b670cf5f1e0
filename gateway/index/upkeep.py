"""What the index does by and by: clearing caches that are gone, aging what may expire, noticing silence.

Clearing and aging visit every row. They go a few thousand rows a step, and until a cache is cleared its bits
are left out of all answers, so it is forgotten at once for whoever asks.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from engine_adapters.events import Tier
from gateway.index.residency import PLANES_OF, Bits, Move, Plane, Residency, plane_of
from gateway.index.targets import Target, Targets

LOOK_EVERY_S: Final = 1.0


@dataclass(frozen=True)
class Lifetimes:
    """How long what no event confirms is believed, in seconds; an entry lasts between half of it and all.

    `predicted_s`: a request was sent to a replica that sends events. `approximate_s`: to one that doesn't, or
    has gone silent. `shared_s`: seen on shared storage. `silent_s`: without an event after traffic that must
    cause some, a replica counts as silent.
    """

    predicted_s: float = 60.0
    approximate_s: float = 600.0
    shared_s: float = 3600.0
    silent_s: float = 30.0


@dataclass(slots=True, eq=False)
class Clearing:
    """Tiers of a target on their way out; with `leaving`, so is the target."""

    target: Target
    tiers: tuple[Tier, ...]
    leaving: bool = False
    at: int = 0


@dataclass(slots=True)
class Aging:
    """A sweep that makes entries older, and how far it got. Without moves there is none."""

    moves: list[Move] = field(default_factory=list)
    at: int = 0


class Upkeep:
    """The slow work on the rows, a step at a time."""

    def __init__(self, residency: Residency, targets: Targets, lifetimes: Lifetimes) -> None:
        self._residency = residency
        self._targets = targets
        self._lifetimes = lifetimes
        self._pending: Counter[tuple[Target, Tier]] = Counter()
        self._aging = Aging()
        self._next_look = -math.inf
        self._shared_aged = -math.inf
        self._hide()

    def begin(self, clearing: Clearing) -> None:
        """From now on these tiers are out of sight; `step_clearing` does the rest, when its turn comes."""
        self._pending.update((clearing.target, tier) for tier in clearing.tiers)
        self._hide()

    def step_clearing(self, clearing: Clearing) -> bool:
        """Clear some rows; returns whether all are, or another clearing of the same tiers, later in the
        queue, will do it: of a storm of them only the last visits the rows."""
        if not self._superseded(clearing):
            clearing.at = self._residency.sweep(clearing.at, self._moves(clearing))
            if clearing.at < self._residency.slots:
                return False
            clearing.target.told.difference_update(clearing.tiers)
        self._pending.subtract((clearing.target, tier) for tier in clearing.tiers)
        self._pending += Counter()  # drops those at zero
        self._hide()
        if clearing.leaving:
            self._targets.release(clearing.target, Tier.SHARED in clearing.tiers)
        return True

    def look(self, now: float) -> list[Target]:
        """Once a second, begin to age what is due, and notice silence.

        Returns the targets that have been silent for so long that nothing they said is believed.
        """
        if now < self._next_look:
            return []
        self._next_look = now + LOOK_EVERY_S
        if not self._aging.moves:
            self._aging = Aging(self._due(now))
        return [target for target in self._targets.all if self._hopeless(target, now)]

    def step_aging(self) -> bool:
        """Age some rows, if any are due; returns whether more are."""
        if self._aging.moves:
            self._aging.at = self._residency.sweep(self._aging.at, self._aging.moves)
            if self._aging.at >= self._residency.slots:
                self._aging = Aging()
        return bool(self._aging.moves)

    def _superseded(self, clearing: Clearing) -> bool:
        return all(self._pending[clearing.target, tier] > 1 for tier in clearing.tiers)

    def _moves(self, clearing: Clearing) -> list[Move]:
        return [
            Move(plane, None, plane_of(self._targets.mask(clearing.target, tier), plane))
            for tier in clearing.tiers
            for plane in PLANES_OF[tier]
        ]

    def _hopeless(self, target: Target, now: float) -> bool:
        if target.silent_since is None:
            expecting = target.expecting_since
            if expecting is not None and now - expecting > self._lifetimes.silent_s:
                target.silent_since = now
            return False
        doubted = any((target, tier) not in self._pending for tier in target.told)
        return doubted and now - target.silent_since > self._lifetimes.approximate_s

    def _half_life(self, target: Target) -> float:
        events = target.sends_events and target.silent_since is None
        return (self._lifetimes.predicted_s if events else self._lifetimes.approximate_s) / 2

    def _due(self, now: float) -> list[Move]:
        hints = np.zeros(self._targets.words, np.uint64)
        for target in self._targets.all:
            if now - target.aged >= self._half_life(target):
                target.aged = now
                hints |= plane_of(self._targets.mask(target, Tier.GPU), Plane.HINT)
        shared = np.zeros(self._targets.words, np.uint64)
        if now - self._shared_aged >= self._lifetimes.shared_s / 2:
            self._shared_aged = now
            shared = ~shared
        older = [
            Move(Plane.HINT_OLD, None, hints),
            Move(Plane.HINT, Plane.HINT_OLD, hints),
            Move(Plane.SHARED_OLD, None, shared),
            Move(Plane.SHARED, Plane.SHARED_OLD, shared),
        ]
        return [move for move in older if move.mask.any()]

    def _hide(self) -> None:
        hidden = [self._targets.mask(target, tier) for target, tier in self._pending]
        self.visible: Bits | None = ~np.bitwise_or.reduce(hidden) if hidden else None
