"""How much a JSON text holds, counted without parsing it and without holding the interpreter's lock.

A parser makes an object of each value, and holds the lock meanwhile: 20 MB of `[]`s stop every other request
for a second and a half. Counting comes first, in numpy, which lets other threads run.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_SLICE = 1 << 18
"""Bytes looked at in one go: what numpy makes of them stays in the processor's cache."""

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_OPENERS = (ord("["), ord("{"))


class JsonSize(NamedTuple):
    """What a text holds, outside its strings."""

    fields: int
    """Arrays, objects and named fields, the outermost object included."""
    values: int
    """Fields and the elements of arrays."""


def json_size(text: bytes) -> JsonSize:
    """Count what a parser would make. Of a text that isn't JSON the counts mean nothing, and never raise."""
    fields = commas = 0
    inside = escaped = False
    whole = np.frombuffer(text, np.uint8)
    for start in range(0, len(whole), _SLICE):
        piece = whole[start : start + _SLICE]
        structure, inside, escaped = _outside_strings(piece, inside, escaped)
        fields += sum(_count(piece, opener, structure) for opener in _OPENERS)
        fields += _count(piece, ord(":"), structure)
        commas += _count(piece, ord(","), structure)
    return JsonSize(fields, fields + commas)


def _count(piece: Bytes, byte: int, among: Flags) -> int:
    return int(np.count_nonzero((piece == byte) & among))


def _outside_strings(piece: Bytes, inside: bool, escaped: bool) -> tuple[Flags, bool, bool]:
    """Which bytes stand outside of strings, and how the next piece begins.

    Args:
        inside: the piece begins in a string.
        escaped: its first byte stands behind a backslash that counts.
    """
    quotes = piece == _QUOTE
    backslashes = np.flatnonzero(piece == _BACKSLASH)
    after = False
    if len(backslashes) or escaped:
        taken, after = _escaped(backslashes, len(piece), escaped)
        quotes[taken] = False
    # Behind an odd number of quotes is inside.
    odd = np.bitwise_xor.accumulate(quotes.view(np.uint8)).view(np.bool_)
    return (odd if inside else ~odd), bool(inside ^ odd[-1]), after


def _escaped(
    backslashes: npt.NDArray[np.intp], length: int, escaped: bool
) -> tuple[npt.NDArray[np.intp], bool]:
    """Positions taken by an escape, and whether the byte behind the piece is one of them.

    In a run of backslashes each second one is escaped itself: with an odd run, the byte behind it is.
    """
    if escaped:  # the backslash that counts stands just before this piece
        backslashes = np.concatenate(([-1], backslashes))
    starts = np.flatnonzero(np.diff(backslashes, prepend=-3) != 1)
    lengths = np.diff(starts, append=len(backslashes))
    behind = backslashes[starts] + lengths
    taken = behind[lengths % 2 == 1]
    return taken[taken < length], bool(len(taken) and taken[-1] == length)
