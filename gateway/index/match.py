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
    of `Tier`; row i is that of `origins[i]`. `ends` [runs] and `held` [runs, 4, targets] are where they lie.
    """

    origins: tuple[Origin, ...]
    tokens: Positions
    ends: Positions
    held: npt.NDArray[np.bool_]

    def leading(self) -> Positions:
        """Leading tokens present on each target [targets], all tiers together."""
        total: Positions = self.tokens.sum(axis=1)
        return total

    def spans(self, target: int) -> Iterator[Span]:
        """The match of `origins[target]`, from the start of the prompt on."""
        span = None
        start = 0
        for end, held in zip(self.ends.tolist(), self.held[:, :, target], strict=True):
            if not held.any():
                break
            tier = Tier(int(np.argmax(held)))
            if span is not None and span.tier is not tier:
                yield span
                span = None
            span = Span(tier, start if span is None else span.start, end)
            start = end
        if span is not None:
            yield span


def compress(rows: Bits, stride: int) -> Runs:
    """Runs of equal rows, each row standing for `stride` tokens."""
    count, width = rows.shape
    flat = rows.reshape(-1)
    changed = (flat[width:] != flat[:-width]).nonzero()[0]
    last = np.empty(len(changed) + min(count, 1), np.int64)
    last[: len(changed)] = changed // width
    last[len(changed) :] = count - 1
    if len(changed) > 1:
        last = last[np.append(last[1:] != last[:-1], True)]
    return Runs((last + 1) * stride, rows.take(last, axis=0))


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
    """Read runs of bits as a match.

    `columns` are those of the targets, `stores` those of their shared storage, if any has one.
    """
    words = runs.rows.shape[1] // PLANES
    flat = np.unpackbits(runs.rows.view(np.uint8), axis=1, count=PLANES * words * WORD, bitorder="little")
    bits = flat.view(np.bool_).reshape(len(flat), PLANES, words * WORD)
    own = bits.take(columns, axis=2)
    held = own[:, : len(Tier)]
    taken = np.logical_and.accumulate(own[:, Plane.GPU] | own[:, Plane.HINT] | own[:, Plane.HINT_OLD])
    held[:, Tier.GPU] = taken
    held[:, Tier.SHARED] = False if stores is None else _reached(bits, stores)
    for tier in (Tier.HOST, Tier.SSD, Tier.SHARED):
        held[:, tier] &= ~taken
        taken = taken | held[:, tier]
    held &= np.logical_and.accumulate(taken)[:, None]
    lengths = runs.ends.astype(np.float32)
    lengths[1:] -= lengths[:-1].copy()
    tokens = lengths @ held.reshape(len(held), len(Tier) * len(columns))
    return Match(origins, tokens.reshape(len(Tier), len(columns)).T.astype(np.int64), runs.ends, held)


def _reached(bits: npt.NDArray[np.bool_], stores: Positions) -> npt.NDArray[np.bool_]:
    """What lies in the stores, for each target that reaches one: [runs, targets]."""
    shared = bits[:, Plane.SHARED] | bits[:, Plane.SHARED_OLD]
    reached: npt.NDArray[np.bool_] = shared.take(stores, axis=1, mode="clip") & (stores != NO_STORE)
    return reached
