"""Prefetches that were ordered: found again by ticket, joined by equal ones, forgotten in the end."""

import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from cache.keys import Namespace
from cache.tickets import Phase
from engine_adapters import wire
from engine_adapters.agent.base import Loading
from engine_adapters.errors import AgentRefused

MOST: Final = 1024
"""Orders at a time."""
REMEMBER_S: Final = 60.0
"""After its end an order can still be asked about so long."""
NEAR_S: Final = 0.1
"""So near to its end an order isn't joined any more: its pages may be let go this moment."""

Name = tuple[Namespace, bytes, int]
"""A prompt's namespace and last page, and the page that the load starts at."""


@dataclass(slots=True, eq=False)
class _Order:
    name: Name
    loading: Loading
    told: wire.Order
    until: float
    wanted: int = 1
    """Clients that haven't given it up."""
    loaded: int = 0
    running: bool = True
    ended: bool = False
    """Whether its pages were let go."""


class Orders:
    """All of them, by ticket."""

    def __init__(self, page_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._page_tokens = page_tokens
        self._clock = clock
        self._orders: dict[int, _Order] = {}
        self._open: dict[Name, int] = {}
        self._tickets = itertools.count(1 + secrets.randbits(48))  # none of an earlier engine's comes again

    def __len__(self) -> int:
        """Those that keep pages."""
        return len(self._open)

    def join(self, name: Name, seconds: float) -> wire.Order | None:
        """An equal one that is under way, or all there, is kept for as long as either asks for."""
        ticket = self._open.get(name)
        if ticket is None:
            return None
        order = self._orders[ticket]
        now = self._look(order)
        over = self._clock() > order.until - NEAR_S
        if over or (not now.running and order.loading.progress().ready < len(order.loading)):
            self._end(ticket, order)  # or what it keeps would stand in the next one's way
            return None
        order.loading.extend(seconds)
        order.until = max(order.until, self._clock() + seconds)
        order.wanted += 1
        return order.told

    def check_room(self) -> None:
        """Raise AgentRefused if there are too many."""
        if len(self._open) >= MOST:
            raise AgentRefused("busy", f"{MOST} prefetches are open: cancel those whose requests have come")

    def add(self, name: Name, loading: Loading, told: wire.Order, seconds: float) -> wire.Order:
        """Take one in, and give it its ticket."""
        ticket = next(self._tickets)
        told = msgspec.structs.replace(told, ticket=ticket)
        self._orders[ticket] = _Order(name, loading, told, self._clock() + seconds)
        self._open[name] = ticket
        return told

    def status(self, ticket: int) -> wire.Progress:
        """How far it is; of one that isn't known (any more), nothing."""
        order = self._orders.get(ticket)
        if order is None:
            return wire.Progress(tokens=0, loaded=0, running=False)
        return self._look(order)

    def cancel(self, ticket: int) -> wire.Progress:
        """One client less; without any it ends."""
        order = self._orders.get(ticket)
        if order is None:
            return wire.Progress(tokens=0, loaded=0, running=False)
        self._look(order)
        order.wanted -= 1
        if order.wanted <= 0:
            self._end(ticket, order)
        return self._look(order)

    def sweep(self) -> None:
        """End those whose time is over, forget those that ended a while ago."""
        now = self._clock()
        for ticket, order in list(self._orders.items()):
            if now >= order.until:
                self._end(ticket, order)
            if now >= order.until + REMEMBER_S:
                del self._orders[ticket]

    def close(self) -> None:
        """End all."""
        for ticket, order in self._orders.items():
            self._end(ticket, order)

    def _look(self, order: _Order) -> wire.Progress:
        if order.running:
            progress = order.loading.progress()
            order.loaded = max(order.loaded, progress.ready)
            order.running = progress.phase is Phase.RUNNING
        size = self._page_tokens
        return wire.Progress(
            tokens=len(order.loading) * size, loaded=order.loaded * size, running=order.running
        )

    def _end(self, ticket: int, order: _Order) -> None:
        if order.ended:
            return
        if self._open.get(order.name) == ticket:
            del self._open[order.name]
        self._look(order)
        order.loading.cancel()
        order.until = min(order.until, self._clock())
        order.running, order.ended = False, True
