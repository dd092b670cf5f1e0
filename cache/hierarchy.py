"""The tiers as one: match, plan, load, store, pin, clear."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cache.errors import FolderError, SettingsError
from cache.finding import Finding, Look
from cache.keys import Namespace, Page
from cache.leases import Lease
from cache.loading import Loading
from cache.memory import Parts, gather
from cache.plan import Match, Plan, decide
from cache.residency import Listener, Snapshot
from cache.state import Level, Settings, State
from cache.statistics import Statistics
from cache.storing import Reservation, Storing
from cache.tickets import Ticket
from cache.tiers.base import Listed, Tier, Usage
from cache.tiers.host import Host
from cache.tiers.lane import Lane
from cache.tiers.slots import ABSENT

logger = logging.getLogger(__name__)

_TEND_SECONDS = 0.1


class Activity(NamedTuple):
    """What is under way at one moment. All zero: everything was given back."""

    tickets: int
    """Loads, prefetches and writes that haven't ended."""
    leases: int
    held: int
    """Holds over all slots of `host`: leased, being filled, read into or written down."""


class Hierarchy:
    """`host`, if there is one, over stores from fast to slow, under one lock that is never held over I/O.

    Safe to call from many threads. Nothing here blocks unless its text says so, and nothing raises for what a
    disk or a store does: a page that can't be had is a miss.
    """

    def __init__(
        self,
        settings: Settings,
        host: Host | None,
        levels: Sequence[Level] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = State(settings, host, levels, clock)
        self._finding = Finding(self._state)
        self._storing = Storing(self._state)
        self._loading = Loading(self._state, self._storing)
        self._ended = threading.Event()
        self._upkeep = threading.Thread(target=self._tend_forever, name="hpkv-tend", daemon=True)
        self._upkeep.start()

    @property
    def settings(self) -> Settings:
        """What it was made with."""
        return self._state.settings

    # -- finding and deciding ---------------------------------------------------------------------

    def look(self, namespace: Namespace, keys: Sequence[bytes], seconds: float | None = None) -> Look:
        """Find the leading pages.

        Remote stores have `seconds` (or `look_seconds`) to answer. Looking is not using.
        """
        return self._finding.look(namespace, keys, seconds)

    def match(self, namespace: Namespace, keys: Sequence[bytes], seconds: float | None = None) -> Match:
        """`look`, and wait for it: blocks for at most `seconds` (or `look_seconds`) if a store is remote."""
        return self.look(namespace, keys, seconds).wait()

    def plan(
        self,
        match: Match,
        computed_tokens: int = 0,
        prefetch: bool = False,
        counted: bool = True,
        threshold: int | None = None,
    ) -> Plan:
        """Decide what of a match to load, given what the engine has computed already. Loads nothing yet.

        `counted`: a request asks, so the statistics tell of it; prefetches never are. `threshold` stands in
        for the settings', for an engine that asks for a prompt in parts and applies it to their sum.
        """
        state = self._state
        with state.lock:
            room = state.host.book.capacity if state.host else None
            if state.host is not None and prefetch:
                room = self._loading.prefetch_room()
            plan = decide(
                match,
                computed_tokens,
                page_tokens=state.settings.page_tokens,
                threshold=state.settings.threshold if threshold is None else threshold,
                costs=state.costs,
                backlog=lambda tier: state.lanes[tier].backlog if tier in state.lanes else 0,
                most_pages=room,
            )
            if counted and not prefetch:
                state.statistics.planned(match, plan)
        if plan.too_slow:
            self._loading.probe(plan)
        return plan

    # -- up ---------------------------------------------------------------------------------------

    def load(self, plan: Plan, pages: Sequence[Page], seconds: float | None = None) -> Ticket:
        """Bring a plan's pages (one `Page` for each key from its start to its cut) into `host`.

        They are leased to the ticket as they arrive, for `hit_seconds` after the deadline unless released
        before.
        """
        settings = self._state.settings
        deadline = self._state.now() + (settings.load_seconds if seconds is None else seconds)
        return self._loading.load(plan, pages, deadline, deadline + settings.hit_seconds, urgent=True)

    def prefetch(self, plan: Plan, pages: Sequence[Page], seconds: float) -> Ticket:
        """As `load`, behind all loads, evicting from the colder half of `host` alone.

        Leased for `seconds` in all.
        """
        self.count_prefetch()
        until = self._state.now() + seconds
        return self._loading.load(plan, pages, until, until, urgent=False)

    def count_prefetch(self) -> None:
        """Count one in the statistics; for an engine that loads by itself what its agent is asked for."""
        with self._state.lock:
            self._state.statistics.prefetches += 1

    def read(self, plan: Plan, into: Sequence[Parts], seconds: float | None = None) -> Ticket:
        """Without a `host` tier: read a plan's pages into the caller's buffers. Mind `Progress.settled`."""
        if self._state.host is not None:
            raise SettingsError("with a host tier, pages are loaded there: use load")
        limit = self._state.settings.load_seconds if seconds is None else seconds
        return self._loading.read(plan, into, self._state.now() + limit)

    def slots(self, namespace: Namespace, keys: Sequence[bytes]) -> list[int]:
        """Host slots of pages that a ticket leases; ABSENT for one that isn't in `host`."""
        assert self._state.host is not None
        with self._state.lock:
            return self._state.host.book.find(namespace, keys)

    def claim(self, ticket: Ticket, plan: Plan) -> list[int]:
        """Host slots of a load's leading pages that are ready, kept until the ticket is released.

        For a caller that is about to copy them and says when it is done: no deadline ends this lease, for a
        copy must not lose its source. A page that was cleared and stored anew meanwhile isn't the ticket's.
        """
        assert self._state.host is not None
        with self._state.lock:
            self._state.leases.extend(ticket.lease, math.inf)
            keys = plan.match.keys[plan.start : plan.start + ticket.ready()]
            found = self._state.host.book.find(plan.match.namespace, keys)
            return list(itertools.takewhile(ticket.lease.slots.__contains__, found))

    def touch(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        """The engine uses these pages from its own cache: their copies here are used, too."""
        state = self._state
        with state.lock:
            used = state.use()
            if state.host is not None:
                found = state.host.book.find(namespace, keys)
                self._storing.touched([slot for slot in dict.fromkeys(found) if slot != ABSENT], used)
            for store in state.ordered.values():
                store.touch(namespace, keys, used)

    # -- in and down ------------------------------------------------------------------------------

    def reserve(self, namespace: Namespace, pages: Sequence[Page]) -> Reservation:
        """Host slots for the pages that `host` hasn't got.

        Fill them, then `commit`; every reservation must be.
        """
        return self._storing.reserve(namespace, pages)

    def commit(self, reservation: Reservation, good: Sequence[bool] | None = None) -> int:
        """Make filled slots visible (all, or those that are `good`); returns how many are.

        Committing again is harmless.
        """
        return self._storing.commit(reservation, good)

    def store(self, namespace: Namespace, pages: Sequence[Page], parts: Sequence[Parts]) -> int:
        """Copy pages into `host` (blocks for the copy); returns how many were taken."""
        assert self._state.host is not None
        reservation = self.reserve(namespace, pages)
        for index, slot in zip(reservation.indices, reservation.slots, strict=True):
            gather(parts[index], self._state.host.page(slot))
        return self.commit(reservation)

    def write(
        self,
        namespace: Namespace,
        pages: Sequence[Page],
        parts: Sequence[Parts],
        seconds: float | None = None,
        only: Tier | None = None,
    ) -> Ticket:
        """Without a `host` tier: write pages from the caller's buffers, to all tiers or to `only` one. Mind
        `Progress.settled`."""
        if self._state.host is not None:
            raise SettingsError("with a host tier, pages are stored there: use store, or reserve and commit")
        limit = self._state.settings.load_seconds if seconds is None else seconds
        return self._storing.write(namespace, pages, parts, self._state.now() + limit, only)

    # -- keeping and clearing ---------------------------------------------------------------------

    def pin(self, match: Match, seconds: float) -> Lease:
        """Keep what of a match is in `host` or in an ordered store for `seconds`, or until `unpin`."""
        state = self._state
        with state.lock:
            lease = state.leases.take(state.now() + seconds, read=False)
            if state.host is not None:
                found = state.host.book.find(match.namespace, match.keys)
                lease.add([slot for slot in found if slot != ABSENT])
            for store in state.ordered.values():
                lease.holds.append(store.hold(match.namespace, match.keys))
        return lease

    def unpin(self, lease: Lease) -> None:
        """End a pin; ending it again is harmless."""
        with self._state.lock:
            self._state.leases.release(lease)

    def clear(self, tier: Tier | None = None, tenant: int | None = None) -> int:
        """Remove a tenant's pages, or everything, from one tier or all; blocks. Returns the pages removed.

        What is being loaded or stored meanwhile doesn't come back. Raises FolderError if a store refuses,
        once all have been asked.
        """
        state, removed, refused = self._state, 0, list[FolderError]()
        with state.lock:
            state.clears += 1
            under_way = {write for write in state.writing if tier in (None, write[0])}
            if state.host is not None and tier in (None, Tier.HOST):
                slots = state.host.book.live(tenant)
                state.host.remove(slots)
                state.leases.cleared(slots)
                removed += len(slots)
        while under_way & state.writing:  # a store that learns of the clear first would keep these
            time.sleep(0.001)
        for name, level in state.levels.items():
            if tier in (None, name):
                try:
                    removed += level.store.clear(tenant)
                except FolderError as error:
                    refused.append(error)
        if refused:
            raise refused[0]
        return removed

    # -- telling ----------------------------------------------------------------------------------

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """Learn from a prefill that an engine made."""
        with self._state.lock:
            self._state.costs.saw_prefill(tokens, seconds)

    def saw_copy(self, pages: int, seconds: float) -> None:
        """Learn from a copy between `host` and the engine's own memory."""
        with self._state.lock:
            self._state.costs.saw_load(Tier.HOST, seconds / pages)

    def rates(self) -> dict[Tier, float]:
        """Pages/s that each tier is believed to load."""
        with self._state.lock:
            return {tier: self._state.costs.page_rate(tier) for tier in self._state.tiers}

    def prefill_rate(self) -> float:
        """Tokens/s that the engine is believed to recompute."""
        with self._state.lock:
            return self._state.costs.prefill_rate

    def statistics(self) -> Statistics:
        """A copy of the counters."""
        with self._state.lock:
            copy = self._state.statistics.copy()
        for tier, level in self._state.levels.items():
            copy.tiers[tier].evictions = level.store.usage().evictions
        return copy

    def usage(self) -> dict[Tier, Usage]:
        """What each tier holds."""
        host, usages = self._state.host, {}
        if host is not None:
            with self._state.lock:
                usages[Tier.HOST] = host.usage()
        return usages | {tier: level.store.usage() for tier, level in self._state.levels.items()}

    def activity(self) -> Activity:
        """What is under way."""
        state = self._state
        with state.lock:
            held = state.host.book.held if state.host is not None else 0
            return Activity(len(state.tickets), len(state.leases), held)

    def listen(self, limit: int = 65536) -> Listener:
        """Changes of residency from now on."""
        return self._state.residency.listen(limit)

    def leave(self, listener: Listener) -> None:
        """Stop telling a listener."""
        self._state.residency.leave(listener)

    def snapshot(self, tier: Tier) -> Snapshot | None:
        """All pages of a tier; None if it isn't here or can't list them."""
        sequence = self._state.residency.sequence
        if tier is Tier.HOST and self._state.host is not None:
            with self._state.lock:
                return Snapshot(self._state.residency.sequence, self._state.host.residency())
        level = self._state.levels.get(tier)
        if level is None or not isinstance(level.store, Listed):
            return None
        return Snapshot(sequence, level.store.residency())

    # -- life -------------------------------------------------------------------------------------

    def drain(self, seconds: float) -> bool:
        """Wait until nothing is read or written any more.

        Blocks. False if something still is after `seconds`.
        """
        limit = time.monotonic() + seconds
        while not all(lane.idle for lane in self._state.lanes.values()):
            if time.monotonic() > limit:
                return False
            time.sleep(0.001)
        return True

    def flush(self, seconds: float) -> bool:
        """Write down what `host` alone has because its write waits for eviction, and wait for all writes.

        Blocks. False if some aren't done after `seconds`.
        """
        self._storing.flush()
        return self.drain(seconds)

    def tend(self) -> None:
        """End what is overdue. Runs by itself ten times a second."""
        state = self._state
        with state.lock:
            now = state.now()
            for ticket in list(state.tickets):
                ticket.expire(now)
            state.statistics.leases_expired += state.leases.expire(now)

    def audit(self) -> None:
        """Check that all books agree; AssertionError says which don't (for tests)."""
        state = self._state
        with state.lock:
            if state.host is not None:
                state.host.book.audit()

    def close(self, seconds: float = 5.0) -> None:
        """Stop the threads and close the stores.

        Blocks for `seconds` at most. A store that hangs is left open.
        """
        self._ended.set()
        self._upkeep.join()
        limit = time.monotonic() + seconds
        closed: set[Tier] = set()

        def close(tier: Tier, lane: Lane) -> None:
            if lane.close(seconds):
                lane.store.close()
                closed.add(tier)

        threads = [
            threading.Thread(target=close, args=lane, name="hpkv-close", daemon=True)
            for lane in self._state.lanes.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(limit - time.monotonic(), 0))
        for tier in set(self._state.lanes) - closed:
            logger.warning("%s hangs; it is left as it is", tier.value)

    def _tend_forever(self) -> None:
        while not self._ended.wait(_TEND_SECONDS):
            self.tend()
