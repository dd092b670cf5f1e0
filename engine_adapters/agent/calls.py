"""What each call does.

A call is done in steps: a generator that yields while it waits for a remote store or for a helping thread,
and returns the answer. The agent's thread takes it up again at its next turn.
"""

import functools
import math
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from cache.errors import CacheError
from cache.keys import tenant_tag
from cache.plan import Match, Plan, Span
from cache.tiers.base import Known, Tier
from engine_adapters import wire
from engine_adapters.agent import report
from engine_adapters.agent.base import Inside, Looking, Prompt
from engine_adapters.agent.jobs import Jobs
from engine_adapters.agent.orders import Orders
from engine_adapters.agent.pins import Pins
from engine_adapters.errors import AgentRefused
from engine_adapters.settings import PinSettings

LONGEST_PREFETCH_S: Final = 600.0
REMEMBERED: Final = 16
"""Prompts whose pages' names are remembered: naming them is most of a call's work, and who asks of a prompt
asks again, to pin it or when its request comes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pages:
    """A snapshot on its way out, a piece at a time."""

    tier: wire.TierName
    sequence: int
    known: Known

    def __iter__(self) -> Iterator[wire.Listing]:
        keys, ends = self.known
        for start in range(0, max(len(keys), 1), wire.PIECE):
            piece = slice(start, start + wire.PIECE)
            yield wire.Listing(
                tier=self.tier,
                sequence=self.sequence,
                keys=keys[piece].astype("<u8", copy=False).tobytes(),
                ends=ends[piece].astype("<u4", copy=False).tobytes(),
                last=start + wire.PIECE >= len(keys),
            )


Steps = Generator[None, None, wire.Answer | Pages]


class Calls:
    """All calls, on the agent's thread."""

    def __init__(
        self,
        inside: Inside,
        pins: PinSettings,
        epoch: int,
        sequence: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sequence` is the number of the stream's last message."""
        self._inside = inside
        self._tiers = inside.tiers
        self._size = inside.tiers.settings.page_tokens
        self._epoch = epoch
        self._sequence = sequence
        self._orders = Orders(self._size, clock)
        self._pins = Pins(inside.tiers, pins, clock)
        self._clears, self._shared_clears, self._listings = map(Jobs, ("clear", "clear-shared", "list"))
        self._named = functools.lru_cache(REMEMBERED)(self._name)

    def begin(self, call: wire.Call) -> Steps:
        """Take a call up. The steps raise AgentRefused, or WireError where its tokens are none."""
        match call:
            case wire.Match():
                return self._match(call)
            case wire.Prefetch():
                return self._prefetch(call)
            case wire.Pin():
                return self._pin(call)
            case wire.Unpin():
                return self._unpin(call)
            case wire.Clear():
                return self._clear(call)
            case wire.Snapshot():
                return self._snapshot(call)
            case _:
                return self._at_once(call)

    def sweep(self) -> None:
        """End what is overdue, forget what has ended."""
        self._orders.sweep()
        self._pins.sweep()

    def close(self, seconds: float) -> None:
        """Let all pages go that orders keep; pins end with the tiers."""
        self._orders.close()
        self._pins.cleared(None)
        for jobs in (self._clears, self._shared_clears, self._listings):
            jobs.close(seconds)

    # -- done at once -----------------------------------------------------------------------------

    def _at_once(self, call: wire.Hello | wire.Stats | wire.Status | wire.Cancel) -> Steps:
        yield from ()
        match call:
            case wire.Hello():
                return report.identity(self._inside.facts(), self._tiers, self._epoch)
            case wire.Stats():
                return report.statistics(self._inside.facts(), self._tiers)
            case wire.Status():
                return self._orders.status(call.ticket)
            case wire.Cancel():
                return self._orders.cancel(call.ticket)

    # -- about a prompt ---------------------------------------------------------------------------

    def _match(self, call: wire.Match) -> Steps:
        prompt = self._prompt(call)
        start, computed = self._from(call.computed)
        match = yield from _found(self._inside.look(prompt, start))
        plan = self._inside.plan(match, computed, prefetch=False)
        return wire.Found(spans=self._spans(match.spans, start), cut=self._cut(plan, start))

    def _prefetch(self, call: wire.Prefetch) -> Steps:
        seconds = min(_seconds(call.seconds), LONGEST_PREFETCH_S)
        prompt = self._prompt(call)
        start, computed = self._from(call.computed)
        if start >= len(prompt.keys):
            return wire.Order(ticket=0, spans=[], cut=start * self._size)
        name = prompt.namespace, prompt.keys[-1], start
        if (joined := self._orders.join(name, seconds)) is not None:
            return joined
        look = self._inside.look(prompt, start)
        match = yield from _found(look)
        if (joined := self._orders.join(name, seconds)) is not None:  # an equal one was quicker
            return joined
        plan = self._inside.plan(match, computed, prefetch=True)
        spans, cut = self._spans(match.spans, start), self._cut(plan, start)
        told = wire.Order(ticket=0, spans=spans, cut=cut, complete=look.complete)
        if not plan.pages:
            return told
        self._orders.check_room()
        return self._orders.add(name, self._inside.prefetch(prompt, start, plan, seconds), told, seconds)

    def _pin(self, call: wire.Pin) -> Steps:
        seconds, prompt = _seconds(call.seconds), self._prompt(call)
        if not prompt.keys:
            return wire.Kept(tokens=0, seconds=0.0)
        match = yield from _found(self._inside.look(prompt, 0))
        name, tenant = (prompt.namespace, prompt.keys[-1]), tenant_tag(call.salt)
        kept = self._pins.pin(name, match, tenant, seconds)
        return wire.Kept(tokens=kept.pages * self._size, seconds=kept.seconds)

    def _unpin(self, call: wire.Unpin) -> Steps:
        yield from ()
        prompt = self._prompt(call)
        if prompt.keys:
            self._pins.unpin((prompt.namespace, prompt.keys[-1]))
        return wire.Kept(tokens=0, seconds=0.0)

    # -- by helping threads: a store that hangs in a clear doesn't hold up what is asked of others ---

    def _clear(self, call: wire.Clear) -> Steps:
        tier = None if call.tier is None else _tier(call.tier)
        tenant = None if call.salt is None else tenant_tag(call.salt)
        if tier is not Tier.SHARED:
            self._pins.cleared(tenant)
        jobs = self._shared_clears if tier in (None, Tier.SHARED) else self._clears
        try:
            pages = yield from _done(jobs.submit(lambda: self._tiers.clear(tier, tenant)))
        except CacheError as error:
            raise AgentRefused("failed", str(error)) from error
        return wire.Removed(pages=pages)

    def _snapshot(self, call: wire.Snapshot) -> Steps:
        tier, sequence = _tier(call.tier), self._sequence()
        known = yield from _done(self._listings.submit(lambda: self._known(tier)))
        return Pages(call.tier, sequence, known)

    def _known(self, tier: Tier) -> Known:
        """On a helping thread: the pages whose prefix is known."""
        snapshot = self._tiers.snapshot(tier)
        if snapshot is None:
            raise AgentRefused("unsupported", f"there is no {tier.value} here that can list its pages")
        named = snapshot.known.end_tokens > 0
        most = wire.SNAPSHOT_PAGES if tier is Tier.SHARED else None
        keys, ends = snapshot.known
        return Known(keys[named][:most], ends[named][:most])

    # -- common -----------------------------------------------------------------------------------

    def _prompt(self, call: wire.Match | wire.Prefetch | wire.Pin | wire.Unpin) -> Prompt:
        if call.lora is not None:  # whose content may change under its name
            return self._inside.prompt(wire.tokens_of(call.tokens), call.salt, call.lora)
        return self._named(call.tokens, call.salt)

    def _name(self, tokens: bytes, salt: str | None) -> Prompt:
        return self._inside.prompt(wire.tokens_of(tokens), salt, None)

    def _from(self, computed: int) -> tuple[int, int]:
        """The page that computed tokens end in, and how many of them lie in it."""
        if computed < 0:
            raise AgentRefused("invalid", f"computed is {computed}: tokens can't be fewer than none")
        return divmod(computed, self._size)

    def _spans(self, spans: tuple[Span, ...], start: int) -> list[wire.Span]:
        return [wire.Span(span.tier.value, (start + span.stop) * self._size) for span in spans]

    def _cut(self, plan: Plan, start: int) -> int:
        return (start + plan.cut) * self._size


def _found(look: Looking) -> Generator[None, None, Match]:
    while look.pending:
        yield
    return look.match()


def _done(future: Future[T]) -> Generator[None, None, T]:
    while not future.done():
        yield
    return future.result()


def _seconds(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise AgentRefused("invalid", f"for {seconds} seconds nothing can be kept")
    return seconds


def _tier(name: wire.TierName) -> Tier:
    if name == "gpu":
        raise AgentRefused("unsupported", "gpu is the engine's own: see its KV events, and its own reset")
    return Tier(name)
