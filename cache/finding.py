"""Matches: which tier, from fast to slow, has each leading page of a prompt."""

import itertools
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cache.keys import Namespace
from cache.plan import Match, Span
from cache.state import State
from cache.tiers.base import Tier

_NOWHERE = -1


class Look:
    """A match that may still wait for a remote store."""

    def __init__(self, state: State, match: Match, deadline: float) -> None:
        self._state = state
        self.local = match
        """What the local tiers have of it."""
        self._deadline = deadline
        self._answer: Match | None = None
        self._over = threading.Event()
        self._expired = False
        self.complete = False
        """Whether every tier has answered, so that what wasn't found isn't there."""

    def answer(self, match: Match, complete: bool = True) -> None:
        """The whole match is known, or as much of it as will be."""
        self.complete = complete
        self._answer = match
        self._over.set()

    @property
    def pending(self) -> bool:
        """Whether a remote store may still answer in time."""
        return self._answer is None and self._state.now() < self._deadline

    def match(self) -> Match:
        """What is known: after the deadline, or before the answer, the local tiers' part of it."""
        if self._answer is not None:
            return self._answer
        if not self.pending and not self._expired:
            self._expired = True
            with self._state.lock:
                self._state.statistics.looks_expired += 1
        return self.local

    def wait(self) -> Match:
        """Wait for the answer, at most until the deadline: for an agent's thread, not for schedulers."""
        self._over.wait(max(self._deadline - self._state.now(), 0))
        return self.match()


class Finding:
    """Looks pages up, top-down."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._remote = next((tier for tier, level in state.levels.items() if level.store.remote), None)

    def look(self, namespace: Namespace, keys: Sequence[bytes], seconds: float | None) -> Look:
        """Look in the local tiers, and ask the remote one for what they haven't got."""
        state = self._state
        deadline = state.now() + (state.settings.look_seconds if seconds is None else seconds)
        where: NDArray[np.int8] = np.full(len(keys), _NOWHERE, np.int8)
        missing = np.arange(len(keys))
        for number, tier in enumerate(state.tiers):
            if tier is not self._remote and len(missing):
                wanted = keys if len(missing) == len(keys) else [keys[index] for index in missing.tolist()]
                found = np.frombuffer(bytes(self._find(tier, namespace, wanted)), np.bool_)
                where[missing[found]] = number
                missing = missing[~found]
        look = Look(state, self._match(namespace, keys, where), deadline)
        if not len(missing) or self._remote is None:
            look.answer(look.local)
        elif not self._ask(look, namespace, keys, where, missing):
            look.answer(look.local, complete=False)
        return look

    def _find(self, tier: Tier, namespace: Namespace, keys: Sequence[bytes]) -> Sequence[bool]:
        if tier is not Tier.HOST:
            return self._state.levels[tier].store.find(namespace, keys)
        assert self._state.host is not None
        with self._state.lock:
            return self._state.host.book.has(namespace, keys)

    def _ask(
        self,
        look: Look,
        namespace: Namespace,
        keys: Sequence[bytes],
        where: NDArray[np.int8],
        missing: NDArray[np.int64],
    ) -> bool:
        assert self._remote is not None
        number, store = self._state.tiers.index(self._remote), self._state.levels[self._remote].store

        def answer(found: Sequence[bool]) -> None:
            where[missing[np.asarray(found, np.bool_)]] = number
            look.answer(self._match(namespace, keys, where), store.usage().available)

        wanted = [keys[index] for index in missing.tolist()]
        return self._state.lanes[self._remote].look(namespace, wanted, answer)

    def _match(self, namespace: Namespace, keys: Sequence[bytes], where: NDArray[np.int8]) -> Match:
        gaps = np.flatnonzero(where == _NOWHERE)
        leading = where[: gaps[0]] if len(gaps) else where
        if not len(leading):
            return Match(namespace, keys, ())
        edges = [0, *(np.flatnonzero(np.diff(leading)) + 1).tolist(), len(leading)]
        tiers = self._state.tiers
        spans = (Span(tiers[leading[start]], start, stop) for start, stop in itertools.pairwise(edges))
        return Match(namespace, keys, tuple(spans))
