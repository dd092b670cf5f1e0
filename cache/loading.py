"""Loads: pages on their way up, shared by all tickets that want them."""

import enum
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from cache.keys import Namespace, Page
from cache.memory import Parts, allocate
from cache.plan import Plan
from cache.state import State
from cache.storing import Storing
from cache.tickets import Ticket
from cache.tiers.base import Outcome, Read, Tier
from cache.tiers.lane import Job, Result
from cache.tiers.slots import ABSENT

PREFETCH_SHARE = 0.5
"""Prefetches evict pages of the colder half of `host` alone, and all together keep no more than half of what
pins leave: beside pins that keep a half, requests have a quarter."""


class _Stage(enum.Enum):
    QUEUED = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


class _Waiter(NamedTuple):
    ticket: Ticket
    place: int


class _Fetch:
    """One page being read from a tier, into a host slot or into a caller's buffers."""

    def __init__(self, loading: "Loading", tier: Tier, namespace: Namespace, page: Page, used: int) -> None:
        self.loading = loading
        self.tier = tier
        self.namespace = namespace
        self.page = page
        self.used = used
        self.clears = loading.state.clears
        self.slot = ABSENT
        self.stage = _Stage.QUEUED
        self.began = 0.0
        self.overdue = False
        self.waiters: list[_Waiter] = []

    def job(self, into: Parts) -> Job:
        return Job(self.namespace, Read(self.page.key, into), self.start, self.done)

    def join(self, ticket: Ticket, place: int) -> None:
        self.waiters.append(_Waiter(ticket, place))
        ticket.drop.append(partial(self.leave, place))

    def leave(self, place: int, ticket: Ticket) -> bool:
        """A waiter's ticket ended early.

        Without waiters the page isn't read. True: no read touches it any more.
        """
        if self.stage is _Stage.ENDED:
            return False
        if ticket.expired:
            self.loading.overdue(self)
        if self.stage is _Stage.RUNNING and self.slot == ABSENT:
            return False  # it writes into the caller's buffers until it returns
        self.waiters.remove(_Waiter(ticket, place))
        if not self.waiters and self.stage is _Stage.QUEUED:
            self.loading.end(self)
        return True

    def start(self) -> bool:
        with self.loading.state.lock:
            if self.stage is not _Stage.QUEUED:
                return False
            self.stage = _Stage.RUNNING
            self.began = self.loading.state.now()
            return True

    def done(self, result: Result) -> None:
        with self.loading.state.lock:
            self.loading.fetched(self, result)


class Loading:
    """Starts loads and takes in what arrives."""

    def __init__(self, state: State, storing: Storing) -> None:
        self.state = state
        self._storing = storing
        self._fetches: dict[tuple[Namespace, bytes], _Fetch] = {}
        self._probing: set[Tier] = set()
        self._prefetches: list[Ticket] = []

    def load(self, plan: Plan, pages: Sequence[Page], deadline: float, until: float, urgent: bool) -> Ticket:
        """Bring a plan's pages into `host`, leased to the ticket until `until`.

        A page that is gone by now, or for which `host` has no room, ends the load before it.
        """
        state = self.state
        jobs: dict[Tier, list[Job]] = {tier: [] for tier in state.lanes}
        assert len(pages) == plan.pages, "a plan is loaded with one page for each key from start to cut"
        with state.lock:
            used = state.use()
            state.statistics.tickets += 1
            lease = state.leases.take(until, read=urgent)
            ticket = Ticket(state, plan.pages, deadline, lease)
            if not urgent:
                self._prefetches.append(ticket)
            self._make_room(plan, pages, urgent)
            reached = self._gather(ticket, plan, pages, used, jobs, urgent)
            for index in range(reached, plan.pages):
                ticket.settle(index, good=False)
            self._storing.touched(list(lease.slots), used)
            self._keep_below(ticket, plan, used)
        for tier, queued in jobs.items():
            state.lanes[tier].load(queued, urgent)
        return ticket

    def read(self, plan: Plan, into: Sequence[Parts], deadline: float) -> Ticket:
        """Read a plan's pages straight into the caller's buffers, one for each page."""
        state = self.state
        jobs: dict[Tier, list[Job]] = {tier: [] for tier in state.lanes}
        with state.lock:
            used = state.use()
            ticket = Ticket(state, plan.pages, deadline, state.leases.take(deadline))
            for span in plan.spans:
                for at in range(span.start, span.stop):
                    key = plan.match.keys[at]
                    fetch = _Fetch(self, span.tier, plan.match.namespace, Page(key, 0, 0), used)
                    fetch.join(ticket, at - plan.start)
                    jobs[span.tier].append(fetch.job(into[at - plan.start]))
            self._keep_below(ticket, plan, used)
        for tier, queued in jobs.items():
            state.lanes[tier].load(queued)
        return ticket

    def prefetch_room(self) -> int:
        """Pages that prefetches may bring up now, beside those they keep already. Lock held."""
        assert self.state.host is not None
        leases = self.state.leases
        self._prefetches = [
            ticket for ticket in self._prefetches if leases.holds(ticket.lease) and not ticket.lease.cleared
        ]
        pinned = leases.kept - sum(len(ticket.lease.slots) for ticket in self._prefetches)
        kept = sum(map(len, self._prefetches))
        return max(int((self.state.host.book.capacity - pinned) * PREFETCH_SHARE) - kept, 0)

    def probe(self, plan: Plan) -> None:
        """Read one page of each tier that the plan left out, to learn whether it is still slow."""
        for span in plan.match.spans:
            with self.state.lock:
                due = (
                    span.tier in plan.too_slow
                    and span.tier not in self._probing
                    and self.state.costs.probe_due(span.tier)
                )
                if due:
                    self._probing.add(span.tier)
            if due:
                self._start_probe(span.tier, plan.match.namespace, plan.match.keys[span.start])

    def overdue(self, fetch: _Fetch) -> None:
        """Learn, once, from a read that wasn't back in time. Lock held."""
        self.state.statistics.tiers[fetch.tier].expired += 1
        if fetch.stage is _Stage.RUNNING and not fetch.overdue:
            fetch.overdue = True
            self.state.costs.saw_load(fetch.tier, self.state.now() - fetch.began)

    def end(self, fetch: _Fetch) -> None:
        """Forget a fetch that nobody reads for. Lock held."""
        fetch.stage = _Stage.ENDED
        if fetch.slot != ABSENT:
            del self._fetches[fetch.namespace, fetch.page.key]
            if self.state.host is not None:
                self.state.host.abandon([fetch.slot])

    def fetched(self, fetch: _Fetch, result: Result) -> None:
        """A read has returned: show the page to all that wait for it. Lock held."""
        state = self.state
        good = result.outcome is Outcome.DONE and fetch.clears == state.clears
        state.statistics.loaded(fetch.tier, result.outcome, state.settings.page_bytes, result.seconds)
        if result.outcome is Outcome.DONE:
            state.costs.saw_load(fetch.tier, result.seconds)
        elif result.outcome is Outcome.FAILED:
            state.costs.saw_failure(fetch.tier, result.seconds)
        if fetch.slot != ABSENT and state.host is not None:
            if good:
                state.host.publish([fetch.slot], fetch.used)
                for waiter in fetch.waiters:
                    waiter.ticket.lease.add([fetch.slot])
                self._storing.arrived(fetch.slot, fetch.tier, fetch.used)
                fetch.stage = _Stage.ENDED
                del self._fetches[fetch.namespace, fetch.page.key]
            else:
                self.end(fetch)
        fetch.stage = _Stage.ENDED
        for waiter in fetch.waiters:
            waiter.ticket.settle(waiter.place, good)

    # Lock held from here on, but for `_start_probe`.

    def _make_room(self, plan: Plan, pages: Sequence[Page], urgent: bool) -> None:
        """Evict what this load needs at once, but none of its own pages."""
        state = self.state
        assert state.host is not None, "without a host tier, pages are read into the caller's buffers"
        keys = [page.key for page in pages]
        slots = [slot for slot in state.host.book.find(plan.match.namespace, keys) if slot != ABSENT]
        slots = list(dict.fromkeys(slots))
        missing = sum((plan.match.namespace, key) not in self._fetches for key in keys) - len(slots)
        state.host.book.hold(slots)
        state.make_room(missing, 1.0 if urgent else PREFETCH_SHARE)
        state.host.book.unhold(slots)

    def _gather(
        self,
        ticket: Ticket,
        plan: Plan,
        pages: Sequence[Page],
        used: int,
        jobs: dict[Tier, list[Job]],
        urgent: bool,
    ) -> int:
        """Lease what is in `host`, join what is on its way, start the rest.

        Returns how many pages that are.
        """
        state, namespace = self.state, plan.match.namespace
        assert state.host is not None
        present = state.host.book.find(namespace, [page.key for page in pages])
        for span in plan.spans:
            for index in range(span.start - plan.start, span.stop - plan.start):
                page, slot = pages[index], present[index]
                if slot != ABSENT:
                    ticket.lease.add([slot])
                    ticket.settle(index, good=True)
                    continue
                fetch = self._fetches.get((namespace, page.key))
                if fetch is not None and fetch.overdue:
                    return index
                if fetch is None:
                    fetch = self._begin(span.tier, namespace, page, used)
                    if fetch is None:
                        return index
                    jobs[fetch.tier].append(fetch.job([state.host.page(fetch.slot)]))
                elif urgent and fetch.stage is _Stage.QUEUED:  # a prefetch may have queued it behind
                    jobs[fetch.tier].append(fetch.job([state.host.page(fetch.slot)]))
                fetch.join(ticket, index)
        return plan.pages

    def _begin(self, tier: Tier, namespace: Namespace, page: Page, used: int) -> _Fetch | None:
        """A fetch with a slot for its page.

        None when there is no room, or the page is being stored just now.
        """
        assert self.state.host is not None
        if tier is Tier.HOST or self.state.host.book.filling(namespace, page.key):
            return None
        slot = self.state.host.take(namespace, page)
        if slot == ABSENT:
            return None
        fetch = _Fetch(self, tier, namespace, page, used)
        fetch.slot = slot
        self._fetches[namespace, page.key] = fetch
        return fetch

    def _keep_below(self, ticket: Ticket, plan: Plan, used: int) -> None:
        """Loading is using, for copies further down too; what is to be read must not be evicted before."""
        namespace, keys = plan.match.namespace, plan.match.keys
        for store in self.state.ordered.values():
            store.touch(namespace, keys[plan.start : plan.cut], used)
        for span in plan.spans:
            lower = self.state.ordered.get(span.tier)
            if lower is not None:
                ticket.lease.holds.append(lower.hold(namespace, keys[span.start : span.stop]))

    def _start_probe(self, tier: Tier, namespace: Namespace, key: bytes) -> None:
        into = [allocate(self.state.settings.page_bytes)]

        def done(result: Result) -> None:
            with self.state.lock:
                self._probing.discard(tier)
                if result.outcome is Outcome.DONE:
                    self.state.costs.saw_load(tier, result.seconds, probe=True)

        self.state.lanes[tier].load([Job(namespace, Read(key, into), lambda: True, done)])
