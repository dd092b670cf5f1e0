"""Events into the index, on the event loop.

Not in a thread: one that decodes and applies events would hold the interpreter for up to its switch interval,
5 ms, each time a request needs it. Here a slice takes a fraction of a millisecond, requests come between
slices, and the index needs no lock. Streams are applied together: what all replicas said within a few
milliseconds is one slice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from engine_adapters.events import Change, Origin
from gateway.index.index import Index

log = logging.getLogger(__name__)

GATHER_S: Final = 0.005
IDLE_S: Final = 1.0


class Feed:
    """The sink of all streams of one index. `clock` tells seconds, as `time.monotonic` does."""

    def __init__(self, index: Index, clock: Callable[[], float]) -> None:
        self._index = index
        self._clock = clock
        self._pushed = asyncio.Event()

    @property
    def backlog(self) -> int:
        """Blocks pushed and not applied yet."""
        return self._index.backlog

    def push(self, origin: Origin, changes: Sequence[Change]) -> None:
        """Take the next changes of this origin, in order."""
        self._index.push(origin, changes)
        self._pushed.set()

    async def run(self) -> None:
        """Apply what is pushed, and let the index age, until cancelled."""
        while True:
            self._pushed.clear()
            try:
                while self._index.work(self._clock()):  # noqa: ASYNC110 - a slice, requests, a slice
                    await asyncio.sleep(0)
            except Exception:  # nobody waits for this task: without it the index would stand still unseen
                log.exception("the index can't be kept up; it will be tried again in %g s", IDLE_S)
                await asyncio.sleep(IDLE_S)
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._pushed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(GATHER_S)
