"""How much of a prompt each target holds, and where: from rows of bits to tokens by tier.

Along a prompt the rows change seldom, so everything after the first pass works on runs of equal rows. An
engine uses its own cache for as far as that reaches from the start, then what lower tiers have from there on
without a gap; each page comes from the fastest tier that has it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engine_adapters.events import Origin, Tier
from gateway.index.residency import ROW_PLANES, Bits, Columns
from gateway.index.targets import Reach

Positions = npt.NDArray[np.int64]

NOWHERE: Final = -1
_TIERS: Final = tuple(Tier)


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

    def spans(self) -> list[tuple[Span, ...]]:
        """Where the tokens lie, from the start of the prompt on, of each target."""
        fastest = np.where(self.held.any(axis=1), self.held.argmax(axis=1), NOWHERE)
        ends = self.ends.tolist()
        return [tuple(_spans(tiers, ends)) for tiers in fastest.T.tolist()]


def _spans(tiers: list[int], ends: list[int]) -> Iterator[Span]:
    """Runs of equal tiers; `tiers` are those of the runs up to `ends`."""
    start = before = 0
    tier = tiers[0] if tiers else NOWHERE
    for there, end in zip(tiers, ends, strict=True):
        if there != tier:
            yield Span(_TIERS[tier], start, before)
            start, tier = before, there
        if there == NOWHERE:
            return
        before = end
    if tier != NOWHERE:
        yield Span(_TIERS[tier], start, before)


def compress(rows: Bits, stride: int) -> Runs:
    """Runs of equal rows, each row standing for `stride` tokens."""
    differs = (rows[1:] != rows[:-1]).view(np.uint64)  # a row is a multiple of eight words
    changed = differs.any(axis=1).nonzero()[0]
    last = np.append(changed, len(rows) - 1) if len(rows) else changed
    return Runs((last + 1) * stride, rows.take(last, axis=0))


def overlay(views: list[Runs], width: int) -> Runs:
    """All views in one, where each has runs of its own."""
    ends = np.unique(np.concatenate([np.zeros(0, np.int64), *(view.ends for view in views)]))
    rows = np.zeros((len(ends), width), np.uint64)
    for view in views:
        at = np.searchsorted(view.ends, ends)
        there = at < len(view.ends)
        rows[there] |= view.rows[at[there]]
    return Runs(ends, rows)


def match(runs: Runs, origins: tuple[Origin, ...], columns: Columns, stores: Sequence[Reach]) -> Match:
    """Read runs of bits as a match.

    `columns` are those of the targets, `stores` what they reach of shared storage. A plane is one integer
    here: there are few runs, and a call of numpy's for each step would cost more than all of them.
    """
    words = runs.rows.shape[1] // ROW_PLANES
    held = _held(_planes(runs.rows, words), stores)
    packed = np.frombuffer(b"".join(mask.to_bytes(8 * words, "little") for mask in held), np.uint8)
    bits = np.unpackbits(packed.reshape(-1, 8 * words), axis=1, bitorder="little").take(columns, axis=1)
    ends = runs.ends[: len(bits) // len(Tier)]
    lengths = ends.astype(np.float32)
    lengths[1:] -= ends[:-1]
    tokens = lengths @ bits.reshape(len(ends), len(Tier) * len(columns))
    shaped = tokens.reshape(len(Tier), len(columns)).T.astype(np.int64)
    return Match(origins, shaped, ends, bits.view(np.bool_).reshape(len(ends), len(Tier), len(columns)))


def _planes(rows: Bits, words: int) -> list[list[int]]:
    """Each plane of each row as one integer, a bit a column."""
    if words == 1:
        planes: list[list[int]] = rows.tolist()
        return planes
    size = words * rows.itemsize
    data = rows.tobytes()
    flat = [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]
    return [flat[at : at + ROW_PLANES] for at in range(0, len(flat), ROW_PLANES)]


def _held(rows: list[list[int]], stores: Sequence[Reach]) -> list[int]:
    """Who takes each run from which tier, four masks of targets a run; up to the first that nobody has."""
    held: list[int] = []
    gpu, unbroken = -1, -1
    for hint_old, hint, on_gpu, host, ssd, shared, shared_old, _ in rows:
        gpu &= on_gpu | hint | hint_old
        stored = _reached(shared | shared_old, stores)
        unbroken &= gpu | host | ssd | stored
        if not unbroken:
            break
        rest = unbroken & ~gpu
        held += (gpu & unbroken, host & rest, ssd & rest & ~host, stored & rest & ~(host | ssd))
    return held


def _reached(shared: int, stores: Sequence[Reach]) -> int:
    """The targets that reach one of the stores in `shared`."""
    reached = 0
    if shared:
        for column, members in stores:
            if shared >> column & 1:
                reached |= members
    return reached
