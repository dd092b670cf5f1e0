"""When each slot was used last, kept now and then, so that a restart evicts in the old order.

Little-endian: the number of slots (u64), xxh3-64 of what follows (u64), then a logical time (u64) for each
slot. Written as a whole. One that is torn or damaged is no order at all: the table's times, of when each page
was stored, stand in for it.
"""

import struct

import numpy as np
import xxhash
from numpy.typing import NDArray

from cache.tiers.ssd.device import Device

USED_BYTES = 8
"""Bytes a slot."""

_HEAD = struct.Struct("<QQ")


class Uses:
    """The file of one sub-folder. Methods block and raise OSError."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def write(self, used: NDArray[np.uint64]) -> None:
        """Keep the logical time of each slot."""
        times = used.data.cast("B") if len(used) else b""
        self._device.write(0, [_HEAD.pack(len(used), xxhash.xxh3_64_intdigest(times)), times])

    def read(self, slots: int) -> NDArray[np.uint64]:
        """What was kept, for the first so many slots; 0 for those of which nothing is known."""
        used = np.zeros(slots, np.uint64)
        raw = memoryview(bytearray(self._device.size()))
        if self._device.read(0, [raw]) < _HEAD.size:
            return used
        count, kept_hash = _HEAD.unpack_from(raw)
        times = raw[_HEAD.size : _HEAD.size + count * USED_BYTES]
        if len(times) == count * USED_BYTES and xxhash.xxh3_64_intdigest(times) == kept_hash:
            kept = np.frombuffer(times, "<u8")[:slots]
            used[: len(kept)] = kept
        return used

    def reserve(self, slots: int) -> None:
        """Make room on the disk for the first `slots` slots."""
        self._device.reserve(0, _HEAD.size + slots * USED_BYTES)

    def clear(self) -> None:
        """Forget everything."""
        self._device.truncate(0)

    def close(self) -> None:
        """Close the file."""
        self._device.close()
