"""The tier stream's payloads, decoded into changes of residency for whoever follows streams."""

from typing import Final, NamedTuple

import msgspec
import numpy as np

from cache.prefix import Keys
from engine_adapters import wire
from engine_adapters.errors import EventsInvalid, WireError
from engine_adapters.events import SLICE_BLOCKS, Change, PageEvents, Tier

_TIERS: Final[dict[wire.TierName, Tier]] = {
    "gpu": Tier.GPU,
    "host": Tier.HOST,
    "ssd": Tier.SSD,
    "shared": Tier.SHARED,
}


class _Head(msgspec.Struct, array_like=True, gc=False):
    published: float


_HEAD = msgspec.msgpack.Decoder(_Head)
_BATCH = msgspec.msgpack.Decoder(wire.TierBatch)


class TierEvents:
    """Decodes one agent's stream, as `engine_adapters.subscriber.Decoder`."""

    def __init__(self) -> None:
        self.epoch = 0
        """Of the engine that was heard last; 0: none yet."""
        self._changes: list[Change] = []

    def published(self, payload: bytes) -> float:
        """When the engine published this payload, by its clock. Raises EventsInvalid."""
        try:
            return _HEAD.decode(payload).published
        except (msgspec.DecodeError, RecursionError) as error:
            raise _invalid(error) from error

    def feed(self, payload: bytes) -> float:
        """Decode one payload; `take` gives its changes. Returns when it was published. Raises
        EventsInvalid, and then nothing of it is taken."""
        try:
            batch = _BATCH.decode(payload)
            runs = [_run(change) for change in batch.changes]
        except (msgspec.DecodeError, RecursionError, WireError) as error:
            raise _invalid(error) from error
        self.epoch = batch.epoch
        self._changes += _slices(runs)
        return batch.published

    def take(self) -> list[Change]:
        """All changes decoded since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes


class _Run(NamedTuple):
    """Pages of one change, or some of them."""

    stored: bool
    tier: Tier
    keys: Keys
    ends: wire.Ends


def _run(change: wire.TierChange) -> _Run:
    return _Run(change.stored, _TIERS[change.tier], *wire.pages_of(change.keys, change.ends))


def _slices(runs: list[_Run]) -> list[PageEvents]:
    """In order, short ones together, long ones cut."""
    slices: list[list[_Run]] = [[]]
    room = SLICE_BLOCKS
    for run in runs:
        at = 0
        while at < len(run.keys):
            piece = slice(at, at + room)
            slices[-1].append(run._replace(keys=run.keys[piece], ends=run.ends[piece]))
            at += len(slices[-1][-1].keys)
            room -= len(slices[-1][-1].keys)
            if not room:
                slices.append([])
                room = SLICE_BLOCKS
    return [_events(some) for some in slices if some]


def _events(runs: list[_Run]) -> PageEvents:
    return PageEvents(
        stored=np.array([run.stored for run in runs], np.bool_),
        tiers=np.array([run.tier for run in runs], np.uint8),
        counts=np.array([len(run.keys) for run in runs], np.int64),
        keys=np.concatenate([run.keys for run in runs]),
        ends=np.concatenate([run.ends for run in runs]),
    )


def _invalid(error: Exception) -> EventsInvalid:
    return EventsInvalid(f"no tier event batch that this version knows: {error}")
