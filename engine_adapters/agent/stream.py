"""The tier stream: what came and went in the tiers, published under sequence numbers and replayed.

Follows the form that `engine_adapters.subscriber` reads. A number is left out, and with it all that could be
replayed before, where the tiers told more than was read in time: whoever follows sees a gap that can't be
filled, and takes a snapshot.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from cache.hierarchy import Hierarchy
from cache.tiers.base import Change, Tier
from engine_adapters import wire

KEPT_MESSAGES: Final = 10_000
KEPT_BYTES: Final = 32 << 20
"""Of messages that can be replayed."""
_END: Final = (-1).to_bytes(8, "big", signed=True)
_TICK: Final = 1e-6
"""Messages differ in when they were published, by more than a float of seconds loses."""

Frames = list[bytes]


class _Message(NamedTuple):
    sequence: int
    payload: bytes

    @property
    def frames(self) -> Frames:
        return [wire.TOPIC, self.sequence.to_bytes(8, "big"), self.payload]


class _Run(NamedTuple):
    """Pages that came to a tier, or went, with nothing of the other kind between them."""

    stored: bool
    pages: list[tuple[int, int]]


class Stream:
    """Follows one hierarchy; not for several threads. `close` it when done."""

    def __init__(
        self,
        tiers: Hierarchy,
        epoch: int,
        send: Callable[[Frames], None],
        clock: Callable[[], float] = time.time,
        limit: int = 65_536,
    ) -> None:
        """`limit`: changes that may wait to be published."""
        self.sequence = -1
        """Of the last message that was published."""
        self._tiers = tiers
        self._epoch = epoch
        self._send = send
        self._clock = clock
        self._listener = tiers.listen(limit)
        self._changes: deque[Change] = deque()
        self._at = 0
        self._lost = False
        self._kept: deque[_Message] = deque()
        self._bytes = 0
        self._published = 0.0
        self._publish([])  # who follows learns the epoch

    def publish(self) -> bool:
        """Publish some of what has changed, one message at most; returns whether more waits."""
        if not self._changes and not self._lost:
            drained = self._listener.drain()
            self._changes.extend(told.change for told in drained.changes)
            self._lost = drained.lost
        if self._changes:
            self._publish(self._gather())
        elif self._lost:
            self._skip()
        return bool(self._changes) or self._lost

    def replay(self, first: int) -> Iterator[Frames]:
        """The messages from number `first` on, as far as they are kept, and the end."""
        kept = [message for message in self._kept if message.sequence >= first]
        return itertools.chain((message.frames for message in kept), [[b"", _END, b""]])

    def close(self) -> None:
        """Listen no longer."""
        self._tiers.leave(self._listener)

    def _gather(self) -> list[wire.TierChange]:
        """The next changes, up to a piece's pages: by tier, for those of two tiers may change places."""
        runs: dict[Tier, list[_Run]] = {}
        room = wire.PIECE
        while self._changes and room:
            change = self._changes[0]
            pages = change.pages[self._at : self._at + room]
            room -= len(pages)
            self._at += len(pages)
            if self._at >= len(change.pages):
                self._changes.popleft()
                self._at = 0
            of_tier = runs.setdefault(change.tier, [])
            if not of_tier or of_tier[-1].stored != change.stored:
                of_tier.append(_Run(change.stored, []))
            of_tier[-1].pages.extend(page for page in pages if page[1])  # one that ends at 0 has no name
        return [_packed(tier, run) for tier, some in runs.items() for run in some]

    def _publish(self, changes: Sequence[wire.TierChange]) -> None:
        self.sequence += 1
        self._published = max(self._clock(), self._published + _TICK)
        batch = wire.TierBatch(self._published, self._epoch, list(changes))
        message = _Message(self.sequence, msgspec.msgpack.encode(batch))
        self._send(message.frames)
        self._kept.append(message)
        self._bytes += len(message.payload)
        while len(self._kept) > KEPT_MESSAGES or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._kept.popleft().payload)

    def _skip(self) -> None:
        self._lost = False
        self._kept.clear()
        self._bytes = 0
        self.sequence += 1
        self._publish([])


def _packed(tier: Tier, run: _Run) -> wire.TierChange:
    columns = np.fromiter(itertools.chain.from_iterable(run.pages), np.uint64, 2 * len(run.pages))
    keys, ends = columns[::2].astype("<u8"), columns[1::2].astype("<u4")
    return wire.TierChange(run.stored, tier.value, keys.tobytes(), ends.tobytes())
