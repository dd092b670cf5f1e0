"""The same where a snapshot can tell what no replay does."""

import math
import time
from collections.abc import Callable

import msgspec
import pytest

from engine_adapters import subscriber as module
from engine_adapters.errors import EngineTimeout
from engine_adapters.events import Tier
from tests.engine_adapters.subscriber.blocks import Blocks, block, settled, until
from tests.fakes.kv_events import KvEventPublisher


class Source:
    """What an engine would tell in a snapshot: `there` as of its last message."""

    def __init__(self, publisher: KvEventPublisher, blocks: Blocks) -> None:
        self.publisher = publisher
        self.blocks = blocks
        self.there: set[int] = set()
        self.taken = 0
        self.fails = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def store(self, name: int) -> None:
        self.there.add(name)
        self.publisher.publish([block(name)])

    async def __call__(self) -> int:
        self.taken += 1
        if self.fails:
            self.fails -= 1
            raise EngineTimeout("the agent is silent")
        there, sequence = set(self.there), self.publisher.sequence - 1
        self.meanwhile()
        self.blocks.cleared.append(())
        self.blocks.there = there
        return sequence


@pytest.fixture
def source(publisher, blocks) -> Source:
    return Source(publisher, blocks)


async def test_a_snapshot_tells_what_no_replay_does_and_the_stream_goes_on_behind_it(
    publisher, follow, paths, blocks, source
):
    for name in (1, 2, 3):
        source.store(name)
    publisher.forget()
    source.store(4)
    source.meanwhile = lambda: source.store(5)
    follower = await follow(*paths, snapshot=source)
    await until(lambda: blocks.there == {1, 2, 3, 4, 5})
    source.store(6)
    await until(lambda: blocks.there == {1, 2, 3, 4, 5, 6})
    assert blocks.stored == [5, 6]
    assert (source.taken, follower.state.snapshots, follower.state.lost) == (1, 1, 0)


async def test_a_snapshot_fills_a_gap_that_no_replay_can(publisher, follow, paths, blocks, source):
    follower = await follow(*paths, snapshot=source)
    await settled(follower)
    source.store(1)
    source.store(2)
    await until(lambda: blocks.there == {1, 2})
    publisher.withhold(1)
    source.store(3)
    publisher.forget()
    source.store(4)
    await until(lambda: blocks.there == {1, 2, 3, 4})
    assert (source.taken, follower.state.gaps, follower.state.lost) == (2, 1, 1)


async def test_a_gap_that_a_replay_fills_takes_no_snapshot(publisher, follow, paths, blocks, source):
    follower = await follow(*paths, snapshot=source)
    await settled(follower)
    source.store(1)
    await until(lambda: blocks.there == {1})
    publisher.withhold(1)
    source.store(2)
    source.store(3)
    await until(lambda: blocks.there == {1, 2, 3})
    assert (source.taken, follower.state.gaps, blocks.cleared) == (1, 1, [()])


async def test_a_restarted_engine_is_told_anew_by_a_snapshot(publisher, follow, paths, blocks, source):
    """Even one that restarts when nothing but a snapshot was heard of it."""
    source.store(1)
    follower = await follow(*paths, snapshot=source)
    await settled(follower)
    for survivors in ({7}, {8, 9}):
        await until(lambda: follower.state.published > -math.inf)  # the replay behind the snapshot is read
        source.there = set(survivors)
        publisher.restart()
        source.store(2)
        await until(lambda there=survivors: blocks.there == {*there, 2})
    assert (follower.state.restarts, follower.state.lost) == (2, 0)
    assert (Tier.GPU,) in blocks.cleared


async def test_a_snapshot_that_cannot_be_had_is_asked_for_again(
    monkeypatch, publisher, follow, paths, blocks, source, caplog
):
    monkeypatch.setattr(module, "RETRY_S", 0.2)
    source.store(1)
    publisher.forget()
    source.fails = 1
    follower = await follow(*paths, snapshot=source)
    await until(lambda: blocks.there == {1})
    assert (follower.state.failures, follower.state.snapshots) == (1, 1)
    assert "the agent is silent" in caplog.text


async def test_a_mute_replay_leaves_a_snapshot_and_what_comes_live(
    monkeypatch, publisher, follow, paths, blocks, source
):
    monkeypatch.setattr(module, "REPLAY_SILENCE_S", 0.1)
    source.store(1)
    follower = await follow(paths[0], paths[1] + "-of-nobody", snapshot=source)
    await until(lambda: follower.state.unanswered == 1)
    assert blocks.there == {1}
    # One that the snapshot knew of, and that was on its way meanwhile, is no restart.
    publisher.publish_raw(b"kv", bytes(8), msgspec.msgpack.encode([time.time(), [block(9)], 0]))
    source.store(2)
    await until(lambda: blocks.there == {1, 2})
    assert follower.state.restarts == 0


async def test_a_snapshot_that_no_replay_reaches_any_more_is_taken_again(
    publisher, follow, paths, blocks, source
):
    source.store(1)

    def much_happens() -> None:
        source.store(2)
        source.store(3)
        publisher.forget()
        source.store(4)
        source.meanwhile = lambda: None

    source.meanwhile = much_happens
    follower = await follow(*paths, snapshot=source)
    await until(lambda: blocks.there == {1, 2, 3, 4})
    assert (source.taken, follower.state.snapshots) == (2, 2)
