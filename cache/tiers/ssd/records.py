"""Records in the slots of one file."""

import os
import threading

from cache.keys import Namespace, Page
from cache.memory import Parts, aligned, allocate, gather, padded, scatter
from cache.record import HEADER_BYTES, Stamp, Verdict, check, seal
from cache.tiers.ssd.device import Device

_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")
"""The most buffers that one call takes."""


def slot_bytes(page_bytes: int) -> int:
    """Bytes from one slot to the next."""
    return HEADER_BYTES + padded(page_bytes)


class Records:
    """Reads and writes whole records; blocks, raises OSError, and may be called from many threads.

    Each call moves header and payload at once. Direct I/O wants aligned buffers; others go through one copy.
    """

    def __init__(self, device: Device, page_bytes: int) -> None:
        self._device = device
        self._page_bytes = page_bytes
        self._slot = slot_bytes(page_bytes)
        self._buffers = threading.local()

    def read(self, slot: int, namespace: Namespace, key: bytes, into: Parts, generation: int) -> Verdict:
        """Read a slot's payload into the parts, and say whether it is the page that was asked for."""
        header, bounce = self._own_buffers()
        straight = self._straight(into)
        buffers = [header, *into] if straight else [header, bounce]
        if self._device.read(slot * self._slot, buffers) < sum(buffer.nbytes for buffer in buffers):
            return Verdict.LENGTH
        if not straight:
            scatter(bounce, into)
        return check(header, into, namespace, key, generation)

    def write(self, slot: int, namespace: Namespace, page: Page, parts: Parts, stamp: Stamp) -> None:
        """Write a page's record into a slot."""
        header, bounce = self._own_buffers()
        seal(header, namespace, page, parts, stamp)
        if not self._straight(parts):
            gather(parts, bounce)
            parts = [bounce]
        self._device.write(slot * self._slot, [header, *parts])

    def _straight(self, parts: Parts) -> bool:
        """Whether one call takes header and parts as they are."""
        return len(parts) < _MOST_BUFFERS and (not self._device.direct or aligned(parts))

    def _own_buffers(self) -> tuple[memoryview, memoryview]:
        """This thread's header block and bounce buffer."""
        try:
            return self._buffers.header, self._buffers.bounce
        except AttributeError:
            self._buffers.header = allocate(HEADER_BYTES)
            self._buffers.bounce = allocate(padded(self._page_bytes))
            return self._buffers.header, self._buffers.bounce
