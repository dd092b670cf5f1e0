"""Copies between an engine's blocks and host rows, where both are plain memory."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.int8]


class Plane(NamedTuple):
    """Layers whose blocks lie at equal distances, so that one call copies a block of all of them."""

    blocks: Bytes
    """[layers, blocks, bytes]"""
    rows: Bytes
    """[rows, layers, blocks of a row, bytes], the same bytes in host memory."""


class Place(NamedTuple):
    """An engine's block, and where in host memory it belongs."""

    block: int
    row: int
    part: int
    """Which of the row's blocks."""


def places(blocks: Sequence[int], rows: Sequence[int], first: int, blocks_per_row: int) -> list[Place]:
    """Consecutive blocks of a prompt and the rows that hold them; `first` is the first block's number."""
    skip = first % blocks_per_row
    return [
        Place(block, rows[at // blocks_per_row], at % blocks_per_row)
        for at, block in enumerate(blocks, start=skip)
    ]


def planes(layers: Sequence[Bytes], rows: Bytes, blocks_per_row: int) -> list[Plane]:
    """Join neighbouring layers ([blocks, bytes] each) that lie at equal distances.

    `rows` is [rows, bytes of a row]; in a row, layer follows layer, each with `blocks_per_row` blocks.
    """
    made, at, offset = [], 0, 0
    while at < len(layers):
        count = _alike(layers[at:])
        size = layers[at].shape[1]
        joined = np.lib.stride_tricks.as_strided(
            layers[at],
            (count, *layers[at].shape),
            (_distance(layers[at : at + 2]), *layers[at].strides),
        )
        width = count * blocks_per_row * size
        part = rows[:, offset : offset + width]
        shape = len(rows), count, blocks_per_row, size
        strides = rows.strides[0], blocks_per_row * size, size, 1
        made.append(Plane(joined, np.lib.stride_tricks.as_strided(part, shape, strides)))
        at, offset = at + count, offset + width
    return made


def to_host(planes: Iterable[Plane], places: Iterable[Place]) -> None:
    """Copy blocks into rows. Lets other threads run."""
    for plane in planes:
        for place in places:
            np.copyto(plane.rows[place.row, :, place.part], plane.blocks[:, place.block])


def from_host(planes: Iterable[Plane], places: Iterable[Place]) -> None:
    """Copy rows into blocks. Lets other threads run."""
    for plane in planes:
        for place in places:
            np.copyto(plane.blocks[:, place.block], plane.rows[place.row, :, place.part])


def _alike(layers: Sequence[Bytes]) -> int:
    """How many of the leading layers lie at equal distances and are of one shape."""
    step = _distance(layers[:2])
    for count in range(1, len(layers)):
        a, b = layers[count - 1 : count + 1]
        if a.shape != b.shape or a.strides != b.strides or _distance((a, b)) != step:
            return count
    return len(layers)


def _distance(layers: Sequence[Bytes]) -> int:
    return layers[1].ctypes.data - layers[0].ctypes.data if len(layers) > 1 else 0
