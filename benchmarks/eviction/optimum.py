"""The offline optimum: the most hits that any policy could have, knowing the future."""

import heapq
from collections.abc import Iterator, Sequence

from benchmarks.eviction.policies import Cache
from benchmarks.eviction.trace import Request

_NEVER = 1 << 60


class Belady(Cache):
    """Keeps the blocks whose next use is nearest; of those used next by one request, the shallower ones.

    Between two uses a block either stays all the time, which makes the second a hit, or doesn't: an interval
    that takes one place. The most intervals of which never more than `capacity` overlap are chosen by giving
    up, whenever there are too many, the one that ends last (Carlisle and Lloyd, 1995). A block's prefix is
    used whenever the block is, so it is kept at least as long, and every present block is a hit by prefix
    too: no policy under prefix semantics can have more.
    """

    def __init__(self, capacity: int, requests: Sequence[Request]) -> None:
        super().__init__(capacity)
        self._next_uses = _next_uses(requests)
        self._until: dict[int, int] = {}
        self._last: list[tuple[int, int, int]] = []

    def __contains__(self, block: int) -> bool:
        return block in self._until

    def __iter__(self) -> Iterator[int]:
        return iter(self._until)

    def use(self, request: Request) -> None:
        for depth, (block, until) in enumerate(zip(request, next(self._next_uses), strict=True)):
            self._until.pop(block, None)
            if until != _NEVER:
                self._until[block] = until
                heapq.heappush(self._last, (-until, -depth, block))
        while len(self._until) > self.capacity:
            until, _, block = heapq.heappop(self._last)
            if self._until.get(block) == -until:
                del self._until[block]


def _next_uses(requests: Sequence[Request]) -> Iterator[list[int]]:
    """For each block of each request, the number of the next request that uses it."""
    next_use: dict[int, int] = {}
    found: list[list[int]] = []
    for number in range(len(requests) - 1, -1, -1):
        found.append([next_use.get(block, _NEVER) for block in requests[number]])
        next_use.update(dict.fromkeys(requests[number], number))
    return reversed(found)
