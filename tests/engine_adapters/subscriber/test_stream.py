"""The subscriber over real sockets, against the fake engine's publisher."""

import asyncio
import logging
import time

import msgspec
import pytest
import zmq
import zmq.asyncio

from engine_adapters import subscriber as module
from engine_adapters.events import Tier
from tests.engine_adapters.subscriber.blocks import block, settled, until
from tests.fakes.kv_events import KvEventPublisher


async def test_a_new_gateway_starts_warm_and_live_messages_follow_without_loss_or_double(
    publisher, follow, paths, blocks
):
    """A new gateway starts cold: not where the engine replays."""
    for name in range(1, 101):
        publisher.publish([block(name)])
    follower = await follow(*paths)
    for name in range(101, 201):
        publisher.publish([block(name)])
        await asyncio.sleep(0.002)
    await until(lambda: 200 in blocks.there)
    assert blocks.stored == list(range(1, 201))
    assert follower.state.sequence == 199
    assert follower.state.published == pytest.approx(time.time(), abs=60)
    assert (follower.state.gaps, follower.state.lost, follower.state.restarts) == (0, 0, 0)


async def test_sequence_gaps_are_replayed(publisher, follow, paths, blocks):
    """Sequence gaps ignored, no gap replay."""
    follower = await follow(*paths)
    await settled(follower)
    publisher.publish([block(1)])
    await until(lambda: 1 in blocks.there)
    publisher.withhold(3)
    for name in range(2, 7):
        publisher.publish([block(name)])
    await until(lambda: 6 in blocks.there)
    assert blocks.stored == [1, 2, 3, 4, 5, 6]
    assert (follower.state.gaps, follower.state.lost) == (1, 0)
    assert blocks.cleared == []


async def test_a_gap_that_cannot_be_filled_forgets_what_the_stream_told(publisher, follow, paths, blocks):
    follower = await follow(*paths)
    await settled(follower)
    publisher.publish([block(1)])
    publisher.publish([block(2)])
    await until(lambda: 2 in blocks.there)
    publisher.withhold(1)
    publisher.publish([block(3)])
    publisher.forget()
    publisher.publish([block(4)])
    await until(lambda: 4 in blocks.there)
    assert blocks.there == {4}
    assert follower.state.lost == 1
    assert blocks.cleared == [(Tier.GPU,)]


async def test_a_gap_on_a_stream_without_replay_forgets(publisher, follow, paths, blocks):
    follower = await follow(paths[0])
    await until(lambda: follower.state.connected)
    await asyncio.sleep(0.2)
    publisher.publish([block(1)])
    await until(lambda: 1 in blocks.there)
    publisher.withhold(1)
    publisher.publish([block(2)])
    publisher.publish([block(3)])
    await until(lambda: 3 in blocks.there)
    assert blocks.there == {3}
    assert (follower.state.gaps, follower.state.lost) == (1, 1)


async def test_a_restarted_engines_blocks_are_not_kept(follow, paths, blocks):
    """Forgotten as soon as the new engine can be heard, before it says a word."""
    publisher = KvEventPublisher(*paths)
    publisher.publish([block(1)])
    publisher.publish([block(2)])
    follower = await follow(*paths)
    await until(lambda: blocks.there == {1, 2})
    publisher.close()
    await until(lambda: not follower.state.connected)
    publisher = KvEventPublisher(*paths)
    try:
        await until(lambda: bool(blocks.cleared))
        assert blocks.there == set()
        publisher.publish([block(3)])
        await until(lambda: blocks.there == {3})
        assert follower.state.restarts == 1
        assert blocks.cleared == [(Tier.GPU,)]
    finally:
        publisher.close()


async def test_a_restart_is_seen_by_its_sequence_alone(publisher, follow, paths, blocks):
    follower = await follow(*paths)
    await settled(follower)
    for name in (1, 2, 3):
        publisher.publish([block(name)])
    await until(lambda: 3 in blocks.there)
    publisher.restart()
    publisher.publish([block(4)])
    publisher.publish([block(5)])
    await until(lambda: blocks.there == {4, 5})
    assert blocks.cleared == [(Tier.GPU,)]
    assert follower.state.restarts == 1


async def test_a_restarted_engine_that_has_overtaken_us_is_not_taken_for_the_old_one(
    publisher, follow, paths, blocks
):
    follower = await follow(*paths)
    await settled(follower)
    publisher.publish([block(1)])
    publisher.publish([block(2)])
    await until(lambda: 2 in blocks.there)
    publisher.restart()
    publisher.withhold(5)
    for name in range(10, 16):
        publisher.publish([block(name)])
    await until(lambda: 15 in blocks.there)
    assert blocks.there == {10, 11, 12, 13, 14, 15}
    assert blocks.cleared == [(Tier.GPU,)]


async def test_a_reconnection_to_the_same_engine_forgets_nothing(publisher, follow, paths, blocks):
    follower = await follow(*paths)
    await settled(follower)
    publisher.publish([block(1)])
    await until(lambda: 1 in blocks.there)
    replays = follower.state.replays
    follower.check()
    await until(lambda: follower.state.replays > replays)
    await asyncio.sleep(0.3)
    publisher.publish([block(2)])
    await until(lambda: blocks.there == {1, 2})
    assert blocks.cleared == []
    assert blocks.stored == [1, 2]


async def test_a_replay_with_holes_is_asked_for_again(monkeypatch, follow, paths, blocks):
    """A ROUTER drops what a slow connection can't take, and the end of the replay with it."""
    monkeypatch.setattr(module, "REPLAY_SILENCE_S", 0.2)
    context = zmq.Context()
    pub, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    pub.bind(paths[0])
    router.bind(paths[1])
    payloads = [msgspec.msgpack.encode([1.0 + i, [block(i + 1)], 0]) for i in range(10)]
    answers = [[0, 1, 2, 3, 7, 8, 9, -1], [3, 4, 5], [5, 6, 7, 8, 9, -1]]
    asked = []
    try:
        follower = await follow(*paths)
        for answer in answers:
            await until(lambda: bool(router.poll(0)))
            client, empty, first = router.recv_multipart()
            asked.append(int.from_bytes(first, "big"))
            for number in answer:
                payload = payloads[number] if number >= 0 else b""
                router.send_multipart([client, empty, b"kv", number.to_bytes(8, "big", signed=True), payload])
        await until(lambda: 10 in blocks.there)
        assert asked == [0, 3, 5]
        assert blocks.stored == list(range(1, 11))
        assert (follower.state.lost, follower.state.unanswered) == (0, 0)
    finally:
        pub.close(linger=0)
        router.close(linger=0)
        context.term()


async def test_a_replay_endpoint_that_is_mute_is_counted_and_live_events_go_on(
    monkeypatch, follow, paths, blocks
):
    monkeypatch.setattr(module, "REPLAY_SILENCE_S", 0.1)
    context = zmq.Context()
    pub = context.socket(zmq.PUB)
    pub.bind(paths[0])
    try:
        follower = await follow(*paths)
        await until(lambda: follower.state.unanswered > 0)
        pub.send_multipart([b"", (0).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [block(1)], 0])])
        await until(lambda: blocks.there == {1})
    finally:
        pub.close(linger=0)
        context.term()


async def test_an_engine_that_connects_finds_us_bound(follow, paths, blocks):
    """vLLM connects its PUB to an endpoint without a wildcard; then we have to be the one that binds."""
    follower = await follow(paths[0], bind=True)
    context = zmq.Context()
    pub = context.socket(zmq.PUB)
    pub.connect(paths[0])
    try:
        await until(lambda: follower.state.connected)
        await asyncio.sleep(0.2)
        pub.send_multipart([b"kv", (0).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [block(1)], 0])])
        await until(lambda: blocks.there == {1})
    finally:
        pub.close(linger=0)
        context.term()


async def test_garbage_is_counted_and_the_stream_goes_on(publisher, follow, paths, blocks):
    follower = await follow(*paths)
    await settled(follower)
    publisher.publish([block(1)])
    publisher.publish_raw(b"kv")
    publisher.publish_raw(b"kv", b"\0" * 8, b"\xc1")
    publisher.publish([{"type": "BlockTeleported", "block_hashes": [5]}])
    publisher.publish([block(2)])
    await until(lambda: 2 in blocks.there)
    assert blocks.there == {1, 2}
    assert follower.state.invalid >= 2


@pytest.mark.parametrize(
    "frames",
    [
        (b"kv", b"\1" * 9, msgspec.msgpack.encode([2.0, [], 0])),
        (b"kv", b"", msgspec.msgpack.encode([2.0, [], 0])),
        (b"kv", b"\xff" * 8, msgspec.msgpack.encode([2.0, [], 0])),
        (b"",),
    ],
)
async def test_frames_without_a_sequence_are_left_out(publisher, follow, paths, blocks, frames):
    follower = await follow(*paths)
    await settled(follower)
    publisher.publish([block(1)])
    publisher.publish_raw(*frames)
    publisher.publish([block(2)])
    await until(lambda: 2 in blocks.there)
    replays = follower.state.replays
    follower.check()
    await until(lambda: follower.state.replays > replays)
    publisher.publish([block(3)])
    await until(lambda: blocks.there == {1, 2, 3})
    assert (follower.state.invalid, follower.state.failures, blocks.cleared) == (1, 0, [])


async def test_garbage_of_one_kind_is_warned_of_once(publisher, follow, paths, blocks, caplog):
    follower = await follow(*paths)
    await settled(follower)
    deep = msgspec.msgpack.encode([time.time(), [], 0])[:-1] + b"\x91" * 100_000 + b"\0"
    for number in range(3):
        publisher.publish_raw(b"kv", number.to_bytes(8, "big"), deep)
    for _ in range(3):
        publisher.publish_raw(b"kv")
    await until(lambda: follower.state.invalid == 6)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert follower.state.failures == 0


@pytest.mark.parametrize("answer", [(b"x",), (b"", b"kv", b"\0" * 9, b""), (b"", b"")])
async def test_a_replay_that_is_answered_with_garbage_is_given_up(follow, paths, blocks, answer):
    context = zmq.Context()
    pub, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    pub.bind(paths[0])
    router.bind(paths[1])
    try:
        follower = await follow(*paths)
        await until(lambda: bool(router.poll(0)))
        router.send_multipart([router.recv_multipart()[0], *answer])
        await until(lambda: follower.state.unanswered == 1)
        pub.send_multipart([b"", (0).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [block(1)], 0])])
        await until(lambda: blocks.there == {1})
        assert (follower.state.invalid, follower.state.failures) == (1, 0)
    finally:
        pub.close(linger=0)
        router.close(linger=0)
        context.term()


async def test_a_replay_that_goes_in_circles_is_given_up(follow, paths, blocks):
    context = zmq.Context()
    pub, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    pub.bind(paths[0])
    router.bind(paths[1])
    payload = msgspec.msgpack.encode([1.0, [block(1)], 0])
    try:
        follower = await follow(*paths)
        for _ in range(2):
            await until(lambda: bool(router.poll(0)))
            client = router.recv_multipart()[0]
            for _ in range(3):
                router.send_multipart([client, b"", b"kv", (0).to_bytes(8, "big"), payload])
        await until(lambda: follower.state.unanswered == 1)
        assert blocks.stored == [1]
    finally:
        pub.close(linger=0)
        router.close(linger=0)
        context.term()


async def test_an_error_of_ours_is_told_and_the_stream_followed_anew(
    monkeypatch, publisher, follow, paths, blocks, caplog
):
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    follower = await follow(*paths)
    await settled(follower)
    publisher.publish([block(1)])
    await until(lambda: 1 in blocks.there)
    poll, fail = zmq.asyncio.Poller.poll, [True]

    def broken(self: zmq.asyncio.Poller, timeout: int = -1) -> object:
        if fail.pop() if fail else False:
            raise RuntimeError("broken")
        return poll(self, timeout)

    monkeypatch.setattr(zmq.asyncio.Poller, "poll", broken)
    await until(lambda: follower.state.failures == 1)
    assert not follower.state.connected
    publisher.publish([block(2)])
    await until(lambda: blocks.there == {1, 2})
    assert (follower.state.connected, follower.state.lost, blocks.stored) == (True, 0, [1, 2])
    assert any(record.exc_info and "followed anew" in record.message for record in caplog.records)


@pytest.mark.parametrize("connects", [True, False])
async def test_an_endpoint_that_is_never_connected_is_warned_of(
    monkeypatch, publisher, follow, paths, caplog, connects
):
    monkeypatch.setattr(module, "UNCONNECTED_S", 0.5)
    follower = await follow(paths[0] if connects else paths[0] + "-of-nobody")
    if not connects:
        await until(lambda: "not connected after" in caplog.text)
        return
    await until(lambda: follower.state.connected)
    await asyncio.sleep(0.6)
    assert caplog.text == ""


async def test_a_slow_consumer_neither_blocks_the_engine_nor_loses_events(publisher, follow, paths, blocks):
    follower = await follow(*paths)
    await settled(follower)
    blocks.backlog = module.MAX_BACKLOG + 1
    began = time.monotonic()
    for name in range(1, 3001):
        publisher.publish([block(name)])
    assert time.monotonic() - began < 3.0
    await asyncio.sleep(1.0)
    assert len(blocks.there) <= module.SLICE_MESSAGES
    blocks.backlog = 0
    await until(lambda: len(blocks.there) == 3000)
    assert blocks.stored == list(range(1, 3001))
    assert follower.state.lost == 0


async def test_an_engine_that_comes_late_is_found(follow, paths, blocks):
    follower = await follow(*paths)
    await asyncio.sleep(0.2)
    assert not follower.state.connected
    publisher = KvEventPublisher(*paths)
    try:
        publisher.publish([block(1)])
        await until(lambda: blocks.there == {1})
        assert follower.state.connected
    finally:
        publisher.close()
