import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from engine_adapters.events import Cleared, Tier
from gateway.index import Feed, Index, Lifetimes
from tests.gateway.index.engine import A, B, Engine, batch, held


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def feed(index, clock) -> AsyncIterator[Feed]:
    feed = Feed(index, clock)
    task = asyncio.create_task(feed.run())
    yield feed
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def drained(feed: Feed) -> None:
    async with asyncio.timeout(5):
        await asyncio.sleep(0.02)
        while feed.backlog:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)


async def test_what_is_pushed_is_applied(feed, index, engine):
    prompt = list(range(100))
    feed.push(A, [batch([engine.stored(prompt)])])
    assert feed.backlog == 6
    await drained(feed)
    assert held(index, engine.prompt(prompt), A) == 96
    feed.push(A, [Cleared((Tier.GPU,))])
    await drained(feed)
    assert index.state().blocks == 0


async def test_requests_come_between_slices(feed, engine):
    """Event loop stalls: no slice of a storm holds the loop long. (In CPU time: neighbours hold it, too.)"""
    storm = [batch([engine.stored([i] * 16 * 400)]) for i in range(100)]
    await drained(feed)
    feed.push(A, storm)
    longest, turns = 0.0, 0
    while feed.backlog:
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
        turns += 1
    assert turns >= 40
    assert longest < 0.05


async def test_entries_age_while_nothing_is_pushed(engine):
    clock = Clock()
    index = Index(blocks=4096, lifetimes=Lifetimes(predicted_s=10))
    index.attach(A)
    feed = Feed(index, clock)
    task = asyncio.create_task(feed.run())
    prompt = Engine().prompt(list(range(100)))
    index.predict(prompt, A, now=0.0)
    for clock.now in (1.0, 7.0, 14.0):
        feed.push(A, [])  # wakes it, as the second that it else waits would
        await drained(feed)
    assert held(index, prompt, A) == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_events_that_cannot_be_applied_cost_their_own_replica_alone(feed, index, engine, caplog):
    prompt, other = list(range(100)), list(range(500, 600))
    poison = replace(batch([engine.stored(prompt)]), tiers=np.zeros(0, np.uint8))
    feed.push(A, [batch([engine.stored(prompt)])])
    feed.push(B, [batch([engine.stored(prompt)])])
    await drained(feed)
    feed.push(A, [poison])
    feed.push(B, [batch([engine.stored(other)])])
    await drained(feed)
    assert [record.replica for record in caplog.records] == ["a"]
    assert held(index, engine.prompt(prompt), A) == 0
    assert held(index, engine.prompt(prompt), B) == held(index, engine.prompt(other), B) == 96
    feed.push(A, [batch([engine.stored(other)])])
    await drained(feed)
    assert held(index, engine.prompt(other), A) == 96


async def test_a_feed_goes_on_after_upkeep_has_failed(feed, index, engine, clock, monkeypatch, caplog):
    def fail(now):
        raise ZeroDivisionError

    prompt = list(range(100))
    monkeypatch.setattr(index._upkeep, "look", fail)
    monkeypatch.setattr("gateway.index.feed.IDLE_S", 0.01)
    feed.push(A, [batch([engine.stored(prompt)])])
    async with asyncio.timeout(20):
        while not caplog.records:
            await asyncio.sleep(0.001)
    monkeypatch.undo()
    await drained(feed)
    assert held(index, engine.prompt(prompt), A) == 96
