"""The index: which replica holds which prefixes, in which tier, fed by events and by routing itself.

One thread uses it, the event loop's. Changes are queued by `push` and applied by `work`, a slice at a time,
so that a storm of events delays a request by a fraction of a millisecond and no lock is needed. Time is what
callers say.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from cache.prefix import Keys, PrefixKeys
from engine_adapters.events import SLICE_BLOCKS, BlockEvents, Change, Cleared, Origin, PageEvents, Tier
from gateway.index.changes import apply_blocks, apply_pages
from gateway.index.hashes import EngineHashes
from gateway.index.match import Match, Positions, Runs, compress, match, overlay
from gateway.index.residency import WORD, Plane, Residency
from gateway.index.table import Slots
from gateway.index.targets import NO_STORE, Store, Target, Targets, View
from gateway.index.upkeep import Clearing, Lifetimes, Upkeep

log = logging.getLogger(__name__)

LEAST_BLOCKS: Final = 4096
HINTS: Final = 1024
"""Blocks of a prediction that are written at once, for siblings to meet there; more follow in slices."""
OWN_TIERS: Final = (Tier.GPU, Tier.HOST, Tier.SSD)


class Hints(NamedTuple):
    """The rest of a long prediction: prefix keys, and where they end."""

    keys: Keys
    ends: Positions


Told = tuple[Target, BlockEvents | PageEvents | Hints]
Queued = Told | Clearing


class IndexState(NamedTuple):
    """Sizes and counts, for metrics and readiness.

    `blocks` and `hashes` are in use, `bytes` are taken in any case; `backlog` waits to be applied; `evicted`
    fell to the bound; `orphans` were stored with an unknown parent; `silent` send no events although they
    must.
    """

    blocks: int
    hashes: int
    bytes: int
    backlog: int
    evicted: int
    orphans: int
    silent: tuple[Origin, ...]


class Index:
    """Residency of one model's prefixes over all its replicas.

    `blocks` bounds the distinct prefixes over all replicas; memory for them is taken at once, about 200 B
    each. `caches` bounds the replicas times their data-parallel ranks.
    """

    def __init__(self, blocks: int = 1 << 20, caches: int = WORD, lifetimes: Lifetimes | None = None) -> None:
        if blocks < LEAST_BLOCKS:
            raise ValueError(
                f"an index of {blocks} blocks is too small to be of use: {LEAST_BLOCKS} at least"
            )
        self._targets = Targets(caches)
        self._residency = Residency(blocks, caches)
        self._hashes = EngineHashes(blocks * 3 // 2)
        self._upkeep = Upkeep(self._residency, self._targets, lifetimes or Lifetimes())
        self._queue: deque[Queued] = deque()
        self._backlog = 0

    @property
    def backlog(self) -> int:
        """Blocks pushed and not applied yet."""
        return self._backlog

    def attach(
        self,
        origin: Origin,
        *,
        sends_events: bool = True,
        pages: Mapping[Tier, int] | None = None,
        store: Store | None = None,
    ) -> None:
        """Add a replica, or one rank of it, or say more of one that was added.

        `pages` are tokens a page of each tier; an engine's events tell its own, which is 16 until then. With
        another store, and so another namespace, what was known of the replica is forgotten; not with its
        first. Raises IndexFullError beyond `caches`.
        """
        target = self._targets.get(origin)
        if target is not None and not self._targets.equip(target, store):
            self._drop(origin)
            target = None
        if target is None:
            target = self._targets.add(origin, store, sends_events)
        target.sends_events = sends_events
        for tier, tokens in (pages or {}).items():
            if tier not in target.told:
                target.pages[tier] = tokens
        self._targets.refresh()

    def detach(self, replica: str) -> None:
        """Forget a replica with all its ranks. It is in no answer from now on."""
        for origin in [origin for origin in self._targets.origins if origin.replica == replica]:
            self._drop(origin)

    def push(self, origin: Origin, changes: Sequence[Change]) -> None:
        """Queue the next changes of this origin's stream. Those of an origin that left are dropped."""
        target = self._targets.get(origin)
        if target is None:
            return
        if any(isinstance(change, BlockEvents) or _clears_gpu(change) for change in changes):
            target.expecting_since = target.silent_since = None
        for change in changes:
            if isinstance(change, Cleared):
                self._clear(Clearing(target, change.tiers))
            else:
                self._backlog += int(change.counts.sum())
                self._queue.append((target, change))

    def work(self, now: float) -> bool:
        """Do one slice of what is queued or due; returns whether there is more."""
        for target in self._upkeep.look(now):
            self._clear(Clearing(target, tuple(target.told)))
        aging = self._upkeep.step_aging()
        if self._queue:
            first = self._queue[0]
            if isinstance(first, Clearing):
                if self._upkeep.step_clearing(first):
                    self._queue.popleft()
            else:
                self._apply(self._take(first))
        return aging or bool(self._queue)

    def match(self, prefix: PrefixKeys) -> Match:
        """What each target holds of this prompt, its last token left out: engines compute that in any
        case."""
        targets = self._targets
        prefix.at(targets.stride)
        if len(targets.views) == 1:
            merged = self._unbroken(prefix, targets.stride)
        else:
            runs = [self._runs(prefix, view) for view in targets.views]
            merged = overlay(runs, self._residency.width)
        return match(merged, targets.origins, targets.columns, targets.stores)

    def predict(self, prefix: PrefixKeys, origin: Origin, now: float) -> None:
        """Note that this prompt was sent there: soon its blocks will be there too.

        Of a replica that sends events this is believed until they should have come; of another it is all
        there is, and is believed longer.
        """
        target = self._targets.get(origin)
        if target is None:
            return
        stride = target.pages[Tier.GPU]
        keys = prefix.at(stride)[: self._residency.limit // 4]
        ends = np.arange(1, len(keys) + 1) * stride
        pieces = [Hints(keys[at : at + HINTS], ends[at : at + HINTS]) for at in range(0, len(keys), HINTS)]
        for rest in pieces[1:]:
            self._backlog += len(rest.keys)
            self._queue.append((target, rest))
        waiting = not target.sends_events or target.expecting_since is not None
        if pieces:
            rows = self._hint(target, pieces[0])
            if not waiting and not self._residency.has(rows, Plane.GPU, target.column).all():
                target.expecting_since = now

    def absent(self, prefix: PrefixKeys, at: int, origin: Origin) -> None:
        """Forget that shared storage has the page after `at` tokens, for this target and all that reach the
        same: one of them looked, and it isn't there. No match goes beyond it."""
        target = self._targets.get(origin)
        page = target.pages[Tier.SHARED] if target is not None else 0
        if target is None or not page or target.store == NO_STORE:
            return
        rows = self._residency.find(prefix.at(page)[at // page :][:1])
        self._residency.clear(rows, Tier.SHARED, target.store)

    def state(self) -> IndexState:
        """Sizes and counts as they are now."""
        return IndexState(
            blocks=self._residency.count,
            hashes=self._hashes.count,
            bytes=self._residency.nbytes + self._hashes.nbytes,
            backlog=self._backlog,
            evicted=self._residency.evicted,
            orphans=self._hashes.orphans,
            silent=tuple(t.origin for t in self._targets.all if t.silent_since is not None),
        )

    def _unbroken(self, prefix: PrefixKeys, stride: int) -> Runs:
        """All that is known of a prompt up to the first prefix that nobody holds: no match goes on there."""
        slots = self._find(prefix, stride)
        absent = self._residency.absent
        if len(slots) and slots[-1] == absent:
            slots = slots[: slots.argmax()]  # `absent` is the highest
        return compress(self._residency.read(slots, self._upkeep.visible), stride)

    def _runs(self, prefix: PrefixKeys, view: View) -> Runs:
        """All that is known of a prompt on one grid."""
        visible = self._upkeep.visible
        mask = view.mask if visible is None else view.mask & visible
        return compress(self._residency.read(self._find(prefix, view.stride), mask), view.stride)

    def _find(self, prefix: PrefixKeys, stride: int) -> Slots:
        return self._residency.find(prefix.at(stride)[: max(len(prefix) - 1, 0) // stride])

    def _drop(self, origin: Origin) -> None:
        target = self._targets.remove(origin)
        tiers = OWN_TIERS if self._targets.shared(target) else tuple(Tier)
        self._clear(Clearing(target, tiers, leaving=True))

    def _clear(self, clearing: Clearing) -> None:
        self._upkeep.begin(clearing)
        self._queue.append(clearing)

    def _hint(self, target: Target, hints: Hints) -> Slots:
        self._residency.make_room(len(hints.keys))
        return self._residency.set(hints.keys, hints.ends, Plane.HINT, target.column)

    def _apply(self, taken: Sequence[Told]) -> None:
        """Apply what was taken.

        A replica whose changes can't be applied is forgotten, but for what lies in its store: that is only
        hinted at in any case, and others reach it.
        """
        try:
            self._apply_together(taken)
        except Exception:
            if len(taken) > 1:
                for one in taken:
                    self._apply([one])
                return
            target = taken[0][0]
            log.exception("events can't be applied: what the replica holds is forgotten", extra=_of(target))
            self._clear(Clearing(target, OWN_TIERS))

    def _apply_together(self, taken: Sequence[Told]) -> None:
        target, change = taken[0]
        if isinstance(change, Hints):
            self._hint(target, change)
        elif isinstance(change, PageEvents):
            apply_pages(target, change, self._residency)
        else:
            batches = [(of, batch) for of, batch in taken if isinstance(batch, BlockEvents)]
            for of, batch in batches:
                self._learn_pages(of, batch)
            apply_blocks(batches, self._hashes, self._residency)

    def _take(self, first: Told) -> list[Told]:
        """The first in the queue; of engine events also those behind it that can be applied together."""
        change, taken = first[1], [first]
        self._queue.popleft()
        blocks = len(change.hashes if isinstance(change, BlockEvents) else change.keys)
        width = change.block_tokens if isinstance(change, BlockEvents) else 0
        while isinstance(change, BlockEvents) and self._queue:
            following = self._queue[0]
            if isinstance(following, Clearing) or not isinstance(batch := following[1], BlockEvents):
                break
            if width and batch.block_tokens and batch.block_tokens != width:
                break
            if blocks + len(batch.hashes) > SLICE_BLOCKS:
                break
            width = width or batch.block_tokens
            blocks += len(batch.hashes)
            taken.append(following)
            self._queue.popleft()
        self._backlog -= blocks
        return taken

    def _learn_pages(self, target: Target, batch: BlockEvents) -> None:
        news = [
            target.learn_page(Tier(tier), batch.block_tokens)
            for tier in set(batch.tiers[batch.stored].tolist())
        ]
        if any(news):
            self._targets.refresh()


def _of(target: Target) -> dict[str, object]:
    return {"replica": target.origin.replica, "rank": target.origin.rank}


def _clears_gpu(change: Change) -> bool:
    return isinstance(change, Cleared) and Tier.GPU in change.tiers
