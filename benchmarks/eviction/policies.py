"""Caches of blocks under one eviction policy each, and how their hits are counted."""

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from benchmarks.eviction.trace import BLOCK_TOKENS, Request
from cache.eviction import Eviction, Lru


class Cache(ABC):
    """At most `capacity` blocks."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def __contains__(self, block: int) -> bool: ...

    @abstractmethod
    def __iter__(self) -> Iterator[int]: ...

    @abstractmethod
    def use(self, request: Request) -> None:
        """A request has used these blocks; those that were missing are there to be stored now."""


def hits(cache: Cache, requests: Iterable[Request]) -> int:
    """Blocks that the requests needn't compute: of each, its leading run of blocks present when it arrives.

    A present block behind a missing one is no hit: KV can't be used past a gap in the prompt.
    """
    found = 0
    for request in requests:
        found += next((at for at, block in enumerate(request) if block not in cache), len(request))
        cache.use(request)
    return found


class Ours(Cache):
    """A tier of slots under one of our own policies, used as a tier uses it: one stamp a request."""

    def __init__(self, capacity: int, eviction: Callable[[int], Eviction] = Lru) -> None:
        super().__init__(capacity)
        self._order = eviction(capacity)
        self._slots: dict[int, int] = {}
        self._blocks = [-1] * capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._evictable = np.zeros(capacity, np.bool_)
        self._stamp = 0

    def __contains__(self, block: int) -> bool:
        return block in self._slots

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def use(self, request: Request) -> None:
        self._stamp += 1
        present = [self._slots[block] for block in request if block in self._slots]
        missing = [(at, block) for at, block in enumerate(request) if block not in self._slots]
        self._order.touch(present, self._stamp)
        self._evictable[present] = False
        for slot in self._order.victims(len(missing) - len(self._free), self._evictable):
            self._order.leave([slot])
            self._evictable[slot] = False
            del self._slots[self._blocks[slot]]
            self._free.append(slot)
        for at, block in missing[: len(self._free)]:
            slot = self._slots[block] = self._free.pop()
            self._blocks[slot] = block
            self._order.enter(slot, (at + 1) * BLOCK_TOKENS, self._stamp)
            present.append(slot)
        self._evictable[present] = True


class BlockLru(Cache):
    """Textbook LRU: each block by its own last use, in the order in which a prompt is read."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def use(self, request: Request) -> None:
        for block in request:
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)


class S3Fifo(Cache):
    """Yang et al., SOSP 2023: a small FIFO queue, a main one, and a ghost of what left the small one.

    Of a request, blocks go in from the prompt's end to its start, so that a prefix stays longer than what
    extends it: the other way round, a FIFO queue would break each prompt at its start.
    """

    SMALL = 0.1
    MOST = 3
    """Uses that are counted."""
    PROMOTED = 2
    """Uses in the small queue that earn a place in the main one."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small_size = max(int(capacity * self.SMALL), 1)
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._uses: dict[int, int] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._uses

    def __iter__(self) -> Iterator[int]:
        return iter(self._uses)

    def use(self, request: Request) -> None:
        missing = [block for block in reversed(request) if block not in self._uses]
        for block in request:
            if block in self._uses:
                self._uses[block] = min(self._uses[block] + 1, self.MOST)
        for block in missing:
            self._insert(block)

    def _insert(self, block: int) -> None:
        while len(self._uses) >= self.capacity:
            if len(self._small) >= self._small_size or not self._main:
                self._leave_small()
            else:
                self._leave_main()
        self._uses[block] = 0
        if block in self._ghost:
            del self._ghost[block]
            self._main.append(block)
        else:
            self._small.append(block)

    def _leave_small(self) -> None:
        block = self._small.popleft()
        if self._uses[block] >= self.PROMOTED:
            self._uses[block] = 0
            self._main.append(block)
            return
        del self._uses[block]
        self._ghost[block] = None
        if len(self._ghost) > self.capacity - self._small_size:
            self._ghost.popitem(last=False)

    def _leave_main(self) -> None:
        block = self._main.popleft()
        if self._uses[block]:
            self._uses[block] -= 1
            self._main.append(block)
        else:
            del self._uses[block]


class Arc(Cache):
    """Megiddo and Modha, FAST 2003: seen once and seen twice, with a balance that learns from ghosts.

    Blocks go in as in `S3Fifo`.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._once: OrderedDict[int, None] = OrderedDict()
        self._twice: OrderedDict[int, None] = OrderedDict()
        self._once_ghost: OrderedDict[int, None] = OrderedDict()
        self._twice_ghost: OrderedDict[int, None] = OrderedDict()
        self._target = 0.0

    def __contains__(self, block: int) -> bool:
        return block in self._once or block in self._twice

    def __iter__(self) -> Iterator[int]:
        yield from self._once
        yield from self._twice

    def use(self, request: Request) -> None:
        missing = [block for block in reversed(request) if block not in self]
        for block in reversed(request):
            if block in self:
                self._once.pop(block, None)
                self._twice.pop(block, None)
                self._twice[block] = None
        for block in missing:
            self._insert(block)

    def _insert(self, block: int) -> None:
        once, twice = len(self._once_ghost), len(self._twice_ghost)
        if block in self._once_ghost:
            self._target = min(self._target + max(twice / once, 1), self.capacity)
            self._replace(in_twice_ghost=False)
            del self._once_ghost[block]
            self._twice[block] = None
        elif block in self._twice_ghost:
            self._target = max(self._target - max(once / twice, 1), 0)
            self._replace(in_twice_ghost=True)
            del self._twice_ghost[block]
            self._twice[block] = None
        else:
            self._make_room()
            self._once[block] = None

    def _make_room(self) -> None:
        seen_once = len(self._once) + len(self._once_ghost)
        if seen_once == self.capacity:
            if len(self._once) < self.capacity:
                self._once_ghost.popitem(last=False)
                self._replace(in_twice_ghost=False)
            else:
                self._once.popitem(last=False)
        else:
            everything = seen_once + len(self._twice) + len(self._twice_ghost)
            if everything >= self.capacity:
                if everything == 2 * self.capacity:
                    self._twice_ghost.popitem(last=False)
                self._replace(in_twice_ghost=False)

    def _replace(self, *, in_twice_ghost: bool) -> None:
        n = len(self._once)
        if n and (n > self._target or (in_twice_ghost and n == self._target)):
            self._once_ghost[self._once.popitem(last=False)[0]] = None
        else:
            self._twice_ghost[self._twice.popitem(last=False)[0]] = None
