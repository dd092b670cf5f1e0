"""One engine's share of the upkeep: collecting, if nobody else does, a little at a time."""

import logging
import random
import time
from collections.abc import Callable, Iterator

from cache.stores.base import Limits
from cache.stores.collector import Step, collect
from cache.stores.lease import Lease, Survey, last_survey
from cache.stores.shelf import Shelf

logger = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
UNLIMITED_EVERY_SECONDS = 3600.0
"""A store without limits is collected for what crashes and clears have left."""
SLICE_SECONDS = 0.5


class Upkeep:
    """Called once a second from one thread. Methods block and raise CacheError."""

    def __init__(self, shelf: Shelf, limits: Limits, generation: Callable[[], int]) -> None:
        self._shelf = shelf
        self._limits = limits
        self._generation = generation
        self._every = EVERY_SECONDS if limits.cap or limits.age else UNLIMITED_EVERY_SECONDS
        self._lease = Lease(shelf)
        self._due = 0.0
        self._steps: Iterator[Step] | None = None
        self.survey = Survey()
        """What the store held when it was counted last, by whomever."""
        self.surveys = 0
        """Goes up with each new survey, whatever it finds."""
        self.evictions = 0

    def run(self) -> None:
        """Collect for a moment, if it is time and this engine's turn."""
        if self._steps is None and time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_SECONDS * random.uniform(0.5, 1.0)
            self.surveys, self.survey = last_survey(self._shelf)
            if self._lease.take(self._every):
                limits = self._limits
                self._steps = collect(self._shelf, self._generation, limits.cap or None, limits.age or None)
        steps, self._steps = self._steps, None  # one that fails ends here
        if steps is not None and self._advance(steps):
            self._steps = steps

    def _advance(self, steps: Iterator[Step]) -> bool:
        """Go on for a moment; False when there is nothing more to do."""
        survey, until = self.survey, time.monotonic() + SLICE_SECONDS
        for step in steps:
            survey = step.survey
            self.evictions += step.evicted
            if not self._lease.renew():
                logger.info("%s: another engine collects now", self._shelf.where)
                return False
            if time.monotonic() > until:
                return True
        self._lease.finish(survey)
        self.surveys, self.survey = last_survey(self._shelf)
        return False
