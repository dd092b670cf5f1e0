"""Memory that the client may read from and write into, without a copy in between.

RDMA can reach registered memory alone. Pages mostly lie in one large region, such as the host tier's: it is
registered whole when its first page passes, and stays so. Other buffers are registered while they are used.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from cache.memory import BLOCK, Parts, allocate
from cache.stores.mooncake.client import Client

_MOST = 32
"""Large regions that stay registered while nobody uses them: a caller may always come with new ones."""


@dataclass(slots=True, eq=False)
class _Region:
    address: int
    memory: memoryview
    """Keeps it from being freed while the client knows it."""
    stays: bool
    users: int = 0

    @property
    def end(self) -> int:
        return self.address + self.memory.nbytes


class Buffers:
    """What is registered with one client, from many threads at once."""

    def __init__(self, client: Client, large: int) -> None:
        """Regions of `large` bytes or more stay registered."""
        self._client = client
        self._large = large
        self._regions: list[_Region] = []
        self._lock = threading.Lock()

    @contextmanager
    def registered(self, pages: Sequence[Parts]) -> Iterator[list[list[int]]]:
        """The addresses of each page's parts, registered until the end."""
        used: list[_Region] = []
        try:
            with self._lock:
                addresses = [[self._use(part, used) for part in parts] for parts in pages]
            yield addresses
        finally:
            with self._lock:
                for region in used:
                    region.users -= 1
                self._tidy()

    def keep(self, memory: memoryview) -> None:
        """Register memory until the end."""
        with self._lock:
            region = self._register(memory)
            if region is not None:
                region.users += 1

    def close(self) -> None:
        """Forget all regions that nobody uses."""
        self._large = 1 << 62
        with self._lock:
            for region in self._regions:
                region.stays = False
            self._tidy()

    def _use(self, part: memoryview, used: list[_Region]) -> int:
        address = _address(part)
        region = self._around(address, part.nbytes) or self._register(part)
        if region is not None:
            region.users += 1
            used.append(region)
        return address

    def _around(self, address: int, size: int) -> _Region | None:
        at = bisect_right(self._regions, address, key=lambda region: region.address) - 1
        if at >= 0 and address + size <= self._regions[at].end:
            return self._regions[at]
        return None

    def _register(self, part: memoryview) -> _Region | None:
        """Register what the part is cut from. None if the client refuses: over TCP it works all the same."""
        memory = _whole(part)
        region = _Region(_address(memory), memory, memory.nbytes >= self._large)
        if self._client.register_buffer(region.address, memory.nbytes):
            return None
        self._regions.insert(bisect_right(self._regions, region.address, key=lambda one: one.address), region)
        return region

    def _tidy(self) -> None:
        idle = [region for region in self._regions if not region.users]
        too_many = max(sum(region.stays for region in idle) - _MOST, 0)
        for region in idle:
            if region.stays and not too_many:
                continue
            too_many -= region.stays
            self._client.unregister_buffer(region.address)
            self._regions.remove(region)


class Headers:
    """Header blocks for some calls at once, registered for good."""

    def __init__(self, buffers: Buffers, calls: int, pages: int) -> None:
        """For so many calls at once, of so many pages each."""
        memory = allocate(calls * pages * BLOCK)
        buffers.keep(memory)
        self._free = SimpleQueue[memoryview]()
        for call in range(calls):
            self._free.put(memory[call * pages * BLOCK : (call + 1) * pages * BLOCK])

    @contextmanager
    def some(self, count: int) -> Iterator[list[memoryview]]:
        """So many blocks; waits for them if need be."""
        chunk = self._free.get()
        try:
            yield [chunk[at * BLOCK : (at + 1) * BLOCK] for at in range(count)]
        finally:
            self._free.put(chunk)


def _address(part: memoryview) -> int:
    return int(np.frombuffer(part, np.uint8).__array_interface__["data"][0])


def _whole(part: memoryview) -> memoryview:
    """All of the buffer that a part is a slice of; the part itself where that can't be told."""
    try:
        whole = memoryview(part.obj).cast("B")
        if (
            _address(whole) <= _address(part)
            and _address(part) + part.nbytes <= _address(whole) + whole.nbytes
        ):
            return whole
    except (TypeError, ValueError):
        pass
    return part
