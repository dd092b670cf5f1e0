"""SGLang's three questions of a storage backend, answered from the tiers below its own host memory.

Each is asked on a thread of SGLang's and may block it, for a time that is bounded; nothing here raises for
what a disk or a store does.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from cache.hierarchy import Hierarchy
from cache.keys import Namespace
from cache.memory import Parts, gather, scatter
from cache.plan import Match, Plan, Reason, Span, clip
from cache.tickets import Phase, Ticket
from cache.tiers.base import Tier

from .bounce import Bounce
from .names import Names

BATCH: Final = 128
"""The most pages of one question: SGLang's STORAGE_BATCH_SIZE."""
_REMEMBERED: Final = 64
_POLL_S: Final = 0.0005


_Read = tuple[Ticket, list[memoryview]]
"""A read under way, and the bounce buffers it goes into; none: SGLang's own pages."""


class Shelf:
    """Pages under SGLang's keys, in `ssd` and `shared`.

    From `ssd` they go straight to and from SGLang's host pages; what a remote store moves passes a `Bounce`,
    so that a store that hangs can't keep a host page.
    """

    def __init__(
        self,
        tiers: Hierarchy,
        namespace: Namespace,
        names: Names,
        page_bytes: int,
        *,
        remote: bool,
        load_seconds: float,
    ) -> None:
        self.tiers = tiers
        self.names = names
        self._namespace = namespace
        self._remote = remote
        self._load_seconds = load_seconds
        self.loaded: Counter[Tier] = Counter()
        """Pages that came up, for requests and prefetches."""
        self.stopping: Callable[[], bool] = lambda: False
        """Whether the threads that ask are to end: they wait for no store any more."""
        self.retired = False
        """Whether nothing is here any more, for the engine has other weights."""
        self._found: OrderedDict[str, Match] = OrderedDict()
        self._coming = Bounce(page_bytes, 2 * BATCH)
        self._going = Bounce(page_bytes, 2 * BATCH)  # a store that hangs keeps one batch

    def exists(self, keys: Sequence[str]) -> int:
        """Leading pages that are there and load faster than they are recomputed.

        The token threshold isn't applied: SGLang asks in batches, and applies it to their sum.
        """
        if self.retired:
            return 0
        match = self._match(keys)
        plan = self.tiers.plan(match, threshold=0)
        if plan.pages:
            self._found[keys[0]] = match
            while len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)
        return plan.pages

    def get(self, keys: Sequence[str], pages: Sequence[Parts]) -> int:
        """Read pages into SGLang's host pages; returns how many leading ones are there, checked."""
        if self.retired:
            return 0
        match = self._found.pop(keys[0], None)
        if match is None or match.keys[: len(keys)] != _raw(keys):
            match = self._match(keys)
        spans, reads = clip(match.spans, 0, len(keys)), list[_Read]()
        try:
            for span in spans:
                reads.append(self._read(match, span, pages))
            return self._take(keys, pages, spans, reads)
        finally:  # whatever went wrong: SGLang has its pages back once nothing writes to them any more
            for ticket, buffers in reads:
                if not buffers:
                    self._wait(ticket, forever=True)

    def _take(
        self, keys: Sequence[str], pages: Sequence[Parts], spans: Sequence[Span], reads: Sequence[_Read]
    ) -> int:
        """Wait for reads, one for each span; returns the leading pages that are there."""
        ready = 0
        for span, (ticket, buffers) in zip(spans, reads, strict=True):
            got = self._wait(ticket, forever=not buffers)
            for number in range(got if buffers else 0):
                scatter(buffers[number], pages[span.start + number])
            if buffers:
                above = self._promote(keys[span.start : span.start + got], buffers)
                self._coming.give(buffers, ticket, *above)
            self.loaded[span.tier] += got
            if ready == span.start:
                ready += got
        return ready

    def put(self, keys: Sequence[str], pages: Sequence[Parts]) -> None:
        """Write pages down. What can't be stored isn't: SGLang has no use for knowing."""
        if self.retired:
            return
        named = [self.names.page(key) for key in keys]
        buffers: list[memoryview] = []
        if self._remote:
            buffers = self._going.take(len(named))
            for parts, buffer in zip(pages, buffers, strict=False):
                gather(parts, buffer)
            named, pages = named[: len(buffers)], [[buffer] for buffer in buffers]
        ticket = self.tiers.write(self._namespace, named, pages, self._load_seconds)
        self._wait(ticket, forever=not buffers)
        if buffers:
            self._going.give(buffers, ticket)

    def touch(self, keys: Sequence[str]) -> None:
        """SGLang uses these pages from its own tiers: it never asks for the hottest, and they must not go."""
        if keys and not self.retired:
            self.tiers.touch(self._namespace, _raw(keys))

    def close(self) -> None:
        """Stop the threads, close the stores."""
        self.tiers.close()

    def _match(self, keys: Sequence[str]) -> Match:
        return self.tiers.match(self._namespace, _raw(keys))

    def _read(self, match: Match, span: Span, pages: Sequence[Parts]) -> _Read:
        into, buffers = pages[span.start : span.stop], []
        if self._remote and span.tier is Tier.SHARED:
            buffers = self._coming.take(span.stop - span.start)
            into = [[buffer] for buffer in buffers]
        plan = Plan(match, span.start, span.start + len(into), Reason.LOAD)
        return self.tiers.read(plan, into, self._load_seconds), buffers

    def _promote(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> list[Ticket]:
        """Let pages that came from `shared` go to `ssd`, too, if that leaves memory for the next read."""
        if not keys or Tier.SSD not in self.tiers.usage() or self._coming.spare < BATCH:
            return []
        pages = [self.names.page(key) for key in keys]
        parts = [[buffer] for buffer in buffers[: len(pages)]]
        return [self.tiers.write(self._namespace, pages, parts, self._load_seconds, Tier.SSD)]

    def _wait(self, ticket: Ticket, *, forever: bool) -> int:
        """Wait for a ticket; returns its leading pages that are good.

        With `forever`, until nothing touches the caller's buffers any more, else until its deadline, or until
        the threads that ask are to end.
        """
        while True:
            now = ticket.progress()
            over = now.phase is not Phase.RUNNING or self.stopping()
            if over and (now.settled or not forever):
                ticket.release()
                return now.ready
            time.sleep(_POLL_S)


def _raw(keys: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(key) for key in keys]
