"""Buffers: a page's bytes lie in one part or several, and direct I/O wants them aligned."""

import mmap
from collections.abc import Sequence

import numpy as np

BLOCK = 4096
"""Alignment of slots, headers and direct I/O, in bytes."""

Parts = Sequence[memoryview]
"""A page's bytes, as one or more flat byte buffers in order."""


def allocate(size: int, prefault: bool = False) -> memoryview:
    """`size` bytes of anonymous memory, aligned to `BLOCK`, and touched if `prefault`."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (mmap.MAP_POPULATE if prefault else 0)
    return memoryview(mmap.mmap(-1, max(size, 1), flags=flags))[:size]


def total(parts: Parts) -> int:
    """Bytes over all parts."""
    return sum(part.nbytes for part in parts)


def aligned(parts: Parts) -> bool:
    """Whether direct I/O can use these parts as they are."""
    return all(
        part.nbytes % BLOCK == 0 and np.frombuffer(part, np.uint8).ctypes.data % BLOCK == 0 for part in parts
    )


def padded(size: int) -> int:
    """`size` rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def gather(parts: Parts, into: memoryview) -> None:
    """Copy the parts, in order, to the front of one buffer."""
    at = 0
    for part in parts:
        copy(part, into[at : at + part.nbytes])
        at += part.nbytes


def scatter(source: memoryview, parts: Parts) -> None:
    """Copy the front of one buffer into the parts, in order."""
    at = 0
    for part in parts:
        copy(source[at : at + part.nbytes], part)
        at += part.nbytes


def copy(source: memoryview, target: memoryview) -> None:
    """Copy equal numbers of bytes; unlike slice assignment it lets other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
