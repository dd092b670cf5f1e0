"""The tier stream, followed as the gateway follows it."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import pytest
import zmq
import zmq.asyncio

from cache.tiers.base import Change as Told
from cache.tiers.base import Tier as CacheTier
from engine_adapters import wire
from engine_adapters.agent import stream
from engine_adapters.agent.decoder import TierEvents
from engine_adapters.agent.stream import Stream
from engine_adapters.events import Change, Cleared, Origin, PageEvents, Tier
from engine_adapters.subscriber import Endpoints, Subscriber
from tests.cache.build import Rig
from tests.engine_adapters.agent.build import Served, free_address, loopback_is_ipv6, tokens
from tests.engine_adapters.agent.conftest import Serve

A = Origin("a")
Pages = set[tuple[int, int]]


class Index:
    """A sink that knows what lies in each tier."""

    def __init__(self) -> None:
        self.there: dict[Tier, Pages] = {tier: set() for tier in Tier}
        self.cleared: list[tuple[Tier, ...]] = []
        self.backlog = 0

    def push(self, origin: Origin, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Cleared):
                self.cleared.append(change.tiers)
                for tier in change.tiers:
                    self.there[tier] = set()
            elif isinstance(change, PageEvents):
                self._apply(change)

    def _apply(self, events: PageEvents) -> None:
        at = 0
        rows = zip(events.stored.tolist(), events.tiers.tolist(), events.counts.tolist(), strict=True)
        for stored, tier, count in rows:
            span = slice(at, at + count)
            pages = set(zip(events.keys[span].tolist(), events.ends[span].tolist(), strict=True))
            there = self.there[Tier(tier)]
            self.there[Tier(tier)] = there | pages if stored else there - pages
            at += count


Follow = Callable[[Served], Awaitable[tuple[Subscriber, Index]]]


@pytest.fixture
async def follow() -> AsyncIterator[Follow]:
    context = zmq.asyncio.Context()
    tasks = []

    async def start(served: Served) -> tuple[Subscriber, Index]:
        index, where = Index(), served.agent.endpoints
        tiers = (Tier.HOST, Tier.SSD, Tier.SHARED)
        follower = Subscriber(
            A, Endpoints(where.events, where.replay), TierEvents(), index, context, tiers=tiers
        )
        tasks.append(asyncio.create_task(follower.run()))
        await until(lambda: follower.state.connected and follower.state.replays > 0)
        return follower, index

    yield start
    for task in tasks:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    context.term()


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


async def test_what_comes_and_goes_is_followed(serve: Serve, follow: Follow) -> None:
    served = serve()
    _, index = await follow(served)
    served.put(tokens(6))
    pages = served.names(tokens(6))
    await until(lambda: index.there[Tier.HOST] == index.there[Tier.SSD] == pages)
    served.drop_host()
    await until(lambda: index.there[Tier.HOST] == set())
    assert index.there[Tier.SSD] == pages
    served.rig.tiers.clear()
    await until(lambda: index.there[Tier.SSD] == set())


@pytest.mark.skipif(not loopback_is_ipv6(), reason="this machine has no ::1")
async def test_it_is_followed_over_ipv6(serve: Serve, follow: Follow) -> None:
    served = serve(free_address().replace("127.0.0.1", "[::1]"))
    _, index = await follow(served)
    served.put(tokens(6))
    await until(lambda: index.there[Tier.SSD] == served.names(tokens(6)))


async def test_who_comes_late_is_told_what_was(serve: Serve, follow: Follow) -> None:
    served = serve()
    served.put(tokens(6))
    assert served.rig.tiers.drain(5)
    await asyncio.sleep(0.1)
    follower, index = await follow(served)
    await until(lambda: index.there[Tier.SSD] == index.there[Tier.HOST] == served.names(tokens(6)))
    assert follower.state.unanswered == 0


async def test_an_engine_that_restarts_is_seen_before_it_says_a_word(serve: Serve, follow: Follow) -> None:
    served = serve()
    follower, index = await follow(served)
    served.put(tokens(3))
    await until(lambda: len(index.there[Tier.HOST]) == 3)
    where = served.agent.endpoints.control
    served.agent.close()
    serve(where, more=())
    await until(lambda: follower.state.restarts == 1)
    assert index.there[Tier.HOST] == set()


async def test_changes_that_were_not_read_in_time_leave_a_gap(
    serve: Serve, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    follower, index = await follow(served)
    served.put(tokens(2))
    await until(lambda: len(index.there[Tier.SSD]) == 2)
    published = Stream.publish
    monkeypatch.setattr(served.agent._stream._listener, "_limit", 4)
    monkeypatch.setattr(Stream, "publish", lambda self: False)
    await asyncio.sleep(0.1)
    served.put(tokens(8, start=1))
    assert served.rig.tiers.drain(5)
    monkeypatch.setattr(Stream, "publish", published)
    await until(lambda: follower.state.lost == 1)
    assert follower.state.gaps == 1
    assert index.cleared[-1] == (Tier.HOST, Tier.SSD, Tier.SHARED)
    served.put(tokens(2, start=2))
    await until(lambda: index.there[Tier.HOST] >= served.names(tokens(2, start=2)))


async def test_a_snapshot_and_what_follows_it_make_a_whole(serve: Serve, client_of, follow: Follow) -> None:
    """Taken while pages come and go: from its sequence number on, the stream leads to what is there."""
    served = serve(slots=64, cap=8 << 20)
    client = client_of(served.agent.endpoints.control)
    batches: dict[int, bytes] = {}
    context = zmq.asyncio.Context.instance()
    with context.socket(zmq.SUB) as sub:
        sub.linger = 0
        sub.subscribe(b"")
        sub.connect(served.agent.endpoints.events)
        start = itertools.count(1000)
        while not await sub.poll(100):  # until it is heard
            served.put(tokens(1, start=next(start)))
        changing = asyncio.create_task(asyncio.to_thread(churn, served))
        pieces = [piece async for piece in client.snapshot("ssd")]
        await changing
        while await sub.poll(300):
            _, sequence, payload = await sub.recv_multipart()
            batches[int.from_bytes(sequence, "big")] = payload
    index, decoder = Index(), TierEvents()
    for piece in pieces:
        index.there[Tier.SSD] |= set(zip(piece.keys.tolist(), piece.ends.tolist(), strict=True))
    after = sorted(number for number in batches if number > pieces[0].sequence)
    assert after == list(range(pieces[0].sequence + 1, after[-1] + 1))
    assert after[0] > min(batches), "the snapshot was taken before anything changed"
    for number in after:
        decoder.feed(batches[number])
        index.push(A, decoder.take())
    expected = served.rig.ssd.residency()
    pairs = zip(expected.prefix_keys.tolist(), expected.end_tokens.tolist(), strict=True)
    assert index.there[Tier.SSD] == set(pairs)


def churn(served: Served) -> None:
    for number in range(30):
        served.put(tokens(4, start=number), salt="a" if number % 2 else None)
        if number % 10 == 9:
            assert served.rig.tiers.drain(5)
            served.rig.tiers.clear(CacheTier.SSD, tenant=0)
        time.sleep(0.01)
    assert served.rig.tiers.drain(5)


# ---- without sockets ------------------------------------------------------------------------------


class Sent:
    def __init__(self) -> None:
        self.frames: list[list[bytes]] = []

    def __call__(self, frames: list[bytes]) -> None:
        self.frames.append(frames)

    def batches(self) -> list[wire.TierBatch]:
        return [msgspec.msgpack.decode(frames[2], type=wire.TierBatch) for frames in self.frames]


def change(stored: bool, start: int, stop: int, tier: CacheTier = CacheTier.SSD) -> Told:
    return Told(tier, stored, [(key, 16 * key) for key in range(start, stop)])


@pytest.fixture
def one(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


def test_messages_are_numbered_and_later_each_time(one: Rig) -> None:
    sent = Sent()
    stream = Stream(one.tiers, 7, sent, clock=lambda: 5.0)
    one.tiers._state.residency.record(change(True, 0, 3))
    assert not stream.publish()
    first, second = sent.batches()
    assert (first.epoch, first.changes) == (7, [])
    assert second.published > first.published == 5.0
    assert [int.from_bytes(frames[1], "big") for frames in sent.frames] == [0, 1]
    assert not stream.publish()
    assert len(sent.frames) == 2, "nothing changed, and it was told"


def test_changes_are_grouped_by_tier_and_keep_their_order(one: Rig) -> None:
    sent = Sent()
    stream = Stream(one.tiers, 7, sent)
    for number in range(1, 5):
        one.tiers._state.residency.record(change(True, number, number + 1, CacheTier.HOST))
        one.tiers._state.residency.record(change(number != 3, number, number + 1, CacheTier.SSD))
    stream.publish()
    rows = [(row.tier, row.stored, len(row.keys) // 8) for row in sent.batches()[-1].changes]
    assert rows == [("host", True, 4), ("ssd", True, 2), ("ssd", False, 1), ("ssd", True, 1)]


def test_large_changes_go_out_by_turns(one: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE", 4)
    sent = Sent()
    stream = Stream(one.tiers, 7, sent)
    one.tiers._state.residency.record(change(True, 1, 11))
    one.tiers._state.residency.record(change(False, 3, 4))
    assert [stream.publish() for _ in range(3)] == [True, True, False]
    decoder = TierEvents()
    for frames in sent.frames:
        decoder.feed(frames[2])
    index = Index()
    index.push(A, decoder.take())
    assert index.there[Tier.SSD] == {(key, 16 * key) for key in range(1, 11) if key != 3}


def test_a_page_without_a_name_isnt_told(one: Rig) -> None:
    sent = Sent()
    stream = Stream(one.tiers, 7, sent)
    one.tiers._state.residency.record(change(True, 0, 2))  # the first ends at 0
    stream.publish()
    assert [len(row.keys) // 8 for row in sent.batches()[-1].changes] == [1]


def test_what_is_replayed_is_bounded_and_ends(one: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEPT_MESSAGES", 3)
    sent = Sent()
    told = Stream(one.tiers, 7, sent)
    for number in range(9):
        one.tiers._state.residency.record(change(True, number, number + 1))
        told.publish()
    replayed = list(told.replay(0))
    assert replayed[:-1] == sent.frames[-3:]
    assert replayed[-1] == [b"", (-1).to_bytes(8, "big", signed=True), b""]
    assert len(list(told.replay(9))) == 2
    assert len(list(told.replay(100))) == 1
    assert len(list(told.replay(-5))) == 4
    monkeypatch.setattr(stream, "KEPT_BYTES", 100)
    one.tiers._state.residency.record(change(True, 0, 20))
    told.publish()
    assert len(list(told.replay(0))) == 1


def test_behind_a_gap_nothing_older_is_replayed(one: Rig) -> None:
    sent = Sent()
    told = Stream(one.tiers, 7, sent, limit=2)
    for number in range(3):
        one.tiers._state.residency.record(change(True, number, number + 1))
    assert [told.publish(), told.publish()] == [True, False]
    assert [int.from_bytes(frames[1], "big") for frames in sent.frames] == [0, 1, 3]
    assert list(told.replay(0))[:-1] == sent.frames[-1:]


def test_a_closed_stream_listens_no_more(one: Rig) -> None:
    told = Stream(one.tiers, 7, Sent())
    told.close()
    one.tiers._state.residency.record(change(True, 0, 3))
    assert not told.publish()
    assert told.sequence == 0
