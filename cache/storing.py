"""Stores: pages into `host`, and from there down as the policies say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cache.keys import Namespace, Page
from cache.memory import Parts
from cache.state import State
from cache.tickets import Ticket
from cache.tiers.base import Outcome, Tier, Write
from cache.tiers.lane import Job, Result
from cache.tiers.slots import ABSENT


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Host slots for pages that a caller is about to fill. They are invisible until it is committed."""

    indices: Sequence[int]
    """Which of the pages want their bytes.

    The others are there already, on their way, or dropped: for want of room, or since no record could tell
    their numbers.
    """
    slots: Sequence[int]
    """The slot of each of them."""
    dropped: int
    used: int
    clears: int


class _Save:
    """One page that waits to be written to a store, or is being written."""

    def __init__(self, state: State, tier: Tier, done: Callable[[Outcome], None]) -> None:
        self._state = state
        self._tier = tier
        self._done = done
        self._clears = state.clears
        self._begun = False
        self._given_up = False

    def start(self) -> bool:
        with self._state.lock:
            self._begun = True
            if self._given_up:
                return False
            if self._clears == self._state.clears and self.ready():
                self._state.writing.add((self._tier, self))
                return True
            self._state.statistics.tiers[self._tier].drops += 1
            self._done(Outcome.DROPPED)
            return False

    def ready(self) -> bool:
        """Whether the bytes are still there."""
        return True

    def end(self, result: Result) -> None:
        with self._state.lock:
            self._state.writing.discard((self._tier, self))
            size = self._state.settings.page_bytes
            self._state.statistics.stored(self._tier, result.outcome, size, result.seconds)
            self.finish(result.outcome)
            self._done(result.outcome)

    def finish(self, outcome: Outcome) -> None:
        """The write has returned."""

    def leave(self, ticket: Ticket) -> bool:
        """Its ticket ended early.

        True: it won't be tried; else it uses the caller's buffers until it ends.
        """
        self._given_up = not self._begun
        return self._given_up


class _SaveSlot(_Save):
    """One host page to write. It is held only while it is being written: what waits may still be evicted."""

    def __init__(self, state: State, tier: Tier, namespace: Namespace, key: bytes, slot: int) -> None:
        super().__init__(state, tier, lambda outcome: None)
        self._namespace = namespace
        self._key = key
        self._slot = slot

    def ready(self) -> bool:
        assert self._state.host is not None
        book = self._state.host.book
        if book.find(self._namespace, [self._key]) != [self._slot]:
            return False
        book.hold([self._slot])
        return True

    def finish(self, outcome: Outcome) -> None:
        assert self._state.host is not None
        self._state.clean[self._slot] |= outcome.whole
        self._state.host.book.unhold([self._slot])


class Storing:
    """Takes pages in and writes them down."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._demoted_at = 0

    def reserve(self, namespace: Namespace, pages: Sequence[Page]) -> Reservation:
        """Slots for those of the pages that `host` hasn't got; pages nearer the prompt's start first."""
        state = self._state
        assert state.host is not None, "without a host tier, pages are written from the caller's buffers"
        book = state.host.book
        with state.lock:
            used = state.use()
            present = book.find(namespace, [page.key for page in pages])
            self.touched([slot for slot in dict.fromkeys(present) if slot != ABSENT], used)
            new: dict[bytes, int] = {}
            unfit = 0
            for index, page in enumerate(pages):
                if not page.recordable:
                    unfit += 1
                elif present[index] == ABSENT and not book.filling(namespace, page.key):
                    new.setdefault(page.key, index)
            state.make_room(len(new))
            slots = [state.host.take(namespace, pages[index]) for index in new.values()]
            slots = [slot for slot in slots if slot != ABSENT]
            dropped = len(new) - len(slots) + unfit
            state.statistics.tiers[Tier.HOST].drops += dropped
            indices = list(new.values())[: len(slots)]
            reservation = Reservation(indices, slots, dropped, used, state.clears)
            state.reservations.add(reservation)
            return reservation

    def commit(self, reservation: Reservation, good: Sequence[bool] | None = None) -> int:
        """The bytes are there (of all slots, or of those that are `good`).

        Returns how many pages are visible now.
        """
        state = self._state
        assert state.host is not None
        wanted = [True] * len(reservation.slots) if good is None else good
        with state.lock:
            if reservation not in state.reservations:  # its slots may be others' by now
                return 0
            state.reservations.remove(reservation)
            void = reservation.clears != state.clears
            whole = [slot for slot, fine in zip(reservation.slots, wanted, strict=True) if fine and not void]
            lost = [slot for slot, fine in zip(reservation.slots, wanted, strict=True) if void or not fine]
            state.host.abandon(lost)
            state.host.publish(whole, reservation.used)
            state.clean[whole], state.touches[whole] = False, 1
            counts = state.statistics.tiers[Tier.HOST]
            counts.stored += len(whole)
            counts.bytes_stored += len(whole) * state.settings.page_bytes
            if state.settings.write.at_store():
                for slot in whole:
                    self._write_down(slot, list(state.levels), reservation.used)
            self._demote()
        return len(whole)

    def write(
        self,
        namespace: Namespace,
        pages: Sequence[Page],
        parts: Sequence[Parts],
        deadline: float,
        only: Tier | None = None,
    ) -> Ticket:
        """Write pages from the caller's buffers to the stores that admit them, or to `only` one of these."""
        state = self._state
        with state.lock:
            used = state.use()
            wanted = [
                (index, tier)
                for index, page in enumerate(pages)
                for tier, level in state.levels.items()
                if only in (None, tier) and level.admission.admits(namespace, page.key)
            ]
            ticket = Ticket(state, len(wanted), deadline, state.leases.take(deadline))
            for number, (index, tier) in enumerate(wanted):
                save = _Save(state, tier, partial(self._written_from_caller, ticket, number))
                if self._queue(tier, namespace, Write(pages[index], parts[index], used), save):
                    ticket.drop.append(save.leave)
                else:
                    ticket.settle(number, good=False)
        return ticket

    def flush(self) -> None:
        """Under write-back, write down all that hasn't been."""
        state = self._state
        if state.host is None or not state.settings.write.before_eviction():
            return
        with state.lock:
            for slot in state.host.book.live():
                if not state.clean[slot]:
                    self._write_down(slot, list(state.levels), state.use())

    # Lock held from here on.

    def touched(self, slots: Sequence[int], used: int) -> None:
        """Host pages were used by one call."""
        state = self._state
        if state.host is None or not slots:
            return
        state.host.book.touch(slots, used)
        counts = state.touches[slots]
        state.touches[slots] = counts + (counts < 255)
        for slot in slots:
            if not state.clean[slot] and state.settings.write.at_touch(int(state.touches[slot])):
                self._write_down(slot, list(state.levels), used)

    def arrived(self, slot: int, tier: Tier, used: int) -> None:
        """A page came up from a tier: the faster ones between take it, if they admit it."""
        self._state.clean[slot], self._state.touches[slot] = True, 1
        tiers = list(self._state.levels)
        self._write_down(slot, tiers[: tiers.index(tier)], used)
        self._demote()

    def _write_down(self, slot: int, tiers: Sequence[Tier], used: int) -> None:
        """Offer a host page to stores."""
        state = self._state
        assert state.host is not None
        namespace, page, _ = state.host.book.entry(slot)
        for tier in tiers:
            if state.levels[tier].admission.admits(namespace, page.key):
                save = _SaveSlot(state, tier, namespace, page.key, slot)
                self._queue(tier, namespace, Write(page, [state.host.page(slot)], used), save)
            else:
                state.clean[slot] = True

    def _queue(self, tier: Tier, namespace: Namespace, write: Write, save: _Save) -> bool:
        if self._state.lanes[tier].save(Job(namespace, write, save.start, save.end)):
            return True
        self._state.statistics.tiers[tier].drops += 1
        return False

    def _written_from_caller(self, ticket: Ticket, number: int, outcome: Outcome) -> None:
        ticket.settle(number, outcome.whole)

    def _demote(self) -> None:
        """Under write-back, write the coldest eighth of `host` down early, so that evicting it is free."""
        state = self._state
        if state.host is None or not state.settings.write.before_eviction():
            return
        book, ahead = state.host.book, max(state.host.book.capacity // 8, 1)
        evictions = state.statistics.tiers[Tier.HOST].evictions
        if book.capacity - book.taken >= ahead or evictions - self._demoted_at < ahead // 2:
            return
        self._demoted_at = evictions
        coldest = book.victims(ahead)
        book.eviction.allow(coldest)
        for slot in coldest:
            if not state.clean[slot]:
                self._write_down(slot, list(state.levels), state.use())
