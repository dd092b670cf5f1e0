"""How much of a prompt each target holds, and where: from rows of bits to tokens by tier.

Along a prompt the rows change seldom, so everything after the first pass works on runs of equal rows. An
engine uses its own cache for as far as that reaches from the start, then what lower tiers have from there on
without a gap; each page comes from the fastest tier that has it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_adapters.events import Origin, Tier
from gateway.index.residency import PLANES, WORD, Bits, Plane
from gateway.index.targets import NO_STORE

Positions = npt.NDArray[np.int64]


class Span(NamedTuple):
    """Tokens [start, end) that lie in one tier."""

    tier: Tier
    start: int
    end: int


class Runs(NamedTuple):
    """Rows of bits along a prompt: run r holds for the tokens from the run before up to `ends[r]`."""

    ends: Positions
    rows: Bits


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """What the targets hold of one prompt.

    `tokens` [targets, 4] counts the leading tokens that each target would take from each tier, in the order
    of `Tier`; row i is that of `origins[i]`.
    """

    origins: tuple[Origin, ...]
    tokens: Positions
    _columns: Positions
    _ends: Positions
    _held: Bits

    def leading(self) -> Positions:
        """Leading tokens present on each target [targets], all tiers together."""
        total: Positions = self.tokens.sum(axis=1)
        return total

    def spans(self, target: int) -> Iterator[Span]:
        """The match of `origins[target]`, from the start of the prompt on."""
        column = int(self._columns[target])
        word, bit = column // WORD, np.uint64(1 << column % WORD)
        span = None
        start = 0
        for end, held in zip(self._ends.tolist(), self._held[:, :, word] & bit, strict=True):
            if not held.any():
                break
            tier = Tier(int(np.argmax(held != 0)))
            if span is not None and span.tier is not tier:
                yield span
                span = None
            span = Span(tier, start if span is None else span.start, end)
            start = end
        if span is not None:
            yield span


def compress(rows: Bits, stride: int) -> Runs:
    """Runs of equal rows, each row standing for `stride` tokens."""
    if not len(rows):
        return Runs(np.zeros(0, np.int64), rows)
    width = rows.shape[1]
    flat = rows.reshape(-1)
    changed = (flat[width:] != flat[:-width]).nonzero()[0] // width
    last = np.concatenate((changed, (len(rows) - 1,)))
    last = last[np.concatenate((changed != last[1:], (True,)))]
    return Runs((last + 1) * stride, rows[last])


def overlay(views: list[Runs], width: int) -> Runs:
    """All views in one, where each has runs of its own."""
    ends = np.unique(np.concatenate([view.ends for view in views]))
    rows = np.zeros((len(ends), width), np.uint64)
    for view in views:
        at = np.searchsorted(view.ends, ends)
        there = at < len(view.ends)
        rows[there] |= view.rows[at[there]]
    return Runs(ends, rows)


def match(runs: Runs, origins: tuple[Origin, ...], columns: Positions, stores: Positions | None) -> Match:
    """Read runs of bits as a match. `stores` are the columns of the targets' shared storage, if any has
    one."""
    planes = runs.rows.reshape(len(runs.rows), PLANES, runs.rows.shape[1] // PLANES)
    held = planes[:, : len(Tier)].copy()
    held[:, Tier.GPU] |= planes[:, Plane.HINT] | planes[:, Plane.HINT_OLD]
    held[:, Tier.GPU] = taken = np.bitwise_and.accumulate(held[:, Tier.GPU])
    held[:, Tier.SHARED] |= planes[:, Plane.SHARED_OLD]
    held[:, Tier.SHARED] = _of_targets(held[:, Tier.SHARED], columns, stores) if stores is not None else 0
    for tier in (Tier.HOST, Tier.SSD, Tier.SHARED):
        held[:, tier] &= ~taken
        taken = taken | held[:, tier]
    held &= np.bitwise_and.accumulate(taken)[:, None]
    lengths = runs.ends.astype(np.float32)
    lengths[1:] -= lengths[:-1].copy()
    bits = np.unpackbits(
        held.view(np.uint8).reshape(len(held), held.shape[2] * len(Tier) * 8), axis=1, bitorder="little"
    )
    tokens = (lengths @ bits).reshape(len(Tier), -1).take(columns, axis=1).astype(np.int64).T
    return Match(origins, tokens, columns, runs.ends, held)


def _of_targets(shared: Bits, columns: Positions, stores: Positions) -> Bits:
    """The bits of stores, moved to the columns of the targets that reach them."""
    of_store = np.unpackbits(np.ascontiguousarray(shared).view(np.uint8), axis=1, bitorder="little")
    of_target = np.zeros_like(of_store)
    reach = stores != NO_STORE
    of_target[:, columns[reach]] = of_store[:, stores[reach]]
    packed: Bits = np.packbits(of_target, axis=1, bitorder="little").view(np.uint64)
    return packed
