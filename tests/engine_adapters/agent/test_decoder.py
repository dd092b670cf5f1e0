"""Payloads of the tier stream as columns."""

import msgspec
import numpy as np
import pytest

from engine_adapters import wire
from engine_adapters.agent.decoder import TierEvents
from engine_adapters.errors import EventsInvalid
from engine_adapters.events import SLICE_BLOCKS, PageEvents, Tier


def change(stored: bool, tier: wire.TierName, start: int, stop: int) -> wire.TierChange:
    keys, ends = np.arange(start, stop, dtype="<u8"), np.arange(start, stop, dtype="<u4") * 16
    return wire.TierChange(stored, tier, keys.tobytes(), ends.astype("<u4").tobytes())


def payload(*changes: wire.TierChange, published: float = 5.0, epoch: int = 9) -> bytes:
    return msgspec.msgpack.encode(wire.TierBatch(published, epoch, list(changes)))


def rows(events: PageEvents) -> list[tuple[bool, Tier, list[int]]]:
    keys = np.split(events.keys, np.cumsum(events.counts)[:-1])
    columns = zip(events.stored.tolist(), map(Tier, events.tiers.tolist()), keys, strict=True)
    return [(stored, tier, some.tolist()) for stored, tier, some in columns]


def test_short_changes_share_a_batch() -> None:
    decoder = TierEvents()
    assert decoder.feed(payload(change(True, "host", 0, 3), change(False, "ssd", 7, 8))) == 5.0
    (events,) = decoder.take()
    assert isinstance(events, PageEvents)
    assert rows(events) == [(True, Tier.HOST, [0, 1, 2]), (False, Tier.SSD, [7])]
    assert events.ends.tolist() == [0, 16, 32, 112]
    assert (decoder.epoch, decoder.take()) == (9, [])


def test_long_changes_are_cut_in_order() -> None:
    decoder = TierEvents()
    count = 2 * SLICE_BLOCKS + 10
    decoder.feed(
        payload(change(True, "ssd", 0, 10), change(True, "shared", 0, count), change(False, "ssd", 0, 1))
    )
    taken = decoder.take()
    assert all(len(events.keys) <= SLICE_BLOCKS for events in taken)
    found = [row for events in taken for row in rows(events)]
    shared = [key for _, tier, keys in found if tier is Tier.SHARED for key in keys]
    assert shared == list(range(count))
    assert found[0] == (True, Tier.SSD, list(range(10)))
    assert found[-1] == (False, Tier.SSD, [0])


def test_an_empty_batch_changes_nothing() -> None:
    decoder = TierEvents()
    decoder.feed(payload(change(True, "host", 0, 0)))
    assert decoder.take() == []


def test_the_time_of_publishing_is_read_alone() -> None:
    decoder = TierEvents()
    assert decoder.published(payload(change(True, "host", 0, 3), published=7.5)) == 7.5
    assert decoder.take() == []


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"garbage",
        payload(change(True, "tape", 0, 1)),  # type: ignore[arg-type]
        payload(change(True, "host", 0, 3), wire.TierChange(True, "ssd", b"12345678", b"")),
        payload(wire.TierChange(True, "ssd", b"1234567", b"")),
        b"\x94" + payload()[1:] + b"\x91" * 200_000,
    ],
    ids=["nothing", "garbage", "unknown tier", "columns that differ", "half a key", "too deep"],
)
def test_what_no_agent_sends_is_refused_whole(bad: bytes) -> None:
    decoder = TierEvents()
    with pytest.raises(EventsInvalid):
        decoder.feed(bad)
    assert decoder.take() == []
