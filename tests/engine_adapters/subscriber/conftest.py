import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import zmq.asyncio

from engine_adapters import subscriber as module
from engine_adapters.subscriber import Endpoints, Snapshot, Subscriber
from engine_adapters.vllm.events import VllmEvents
from tests.engine_adapters.subscriber.blocks import A, Blocks
from tests.fakes.kv_events import KvEventPublisher


@pytest.fixture
def paths(tmp_path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


@pytest.fixture
def publisher(paths) -> Iterator[KvEventPublisher]:
    publisher = KvEventPublisher(*paths)
    yield publisher
    publisher.close()


@pytest.fixture(autouse=True)
def soon_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be checked waits for the next poll."""
    monkeypatch.setattr(module, "POLL_MS", 20)


Follow = Callable[..., Awaitable[Subscriber]]


@pytest.fixture
async def follow(blocks) -> AsyncIterator[Follow]:
    """Start to follow a stream; returns once it is connected and has caught up."""
    context = zmq.asyncio.Context()
    tasks = []

    async def start(
        events: str, replay: str | None = None, bind: bool = False, snapshot: Snapshot | None = None
    ) -> Subscriber:
        endpoints = Endpoints(events, replay, bind)
        follower = Subscriber(A, endpoints, VllmEvents(), blocks, context, snapshot=snapshot)
        tasks.append(asyncio.create_task(follower.run()))
        return follower

    yield start
    for task in tasks:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    context.term()


@pytest.fixture
def blocks() -> Blocks:
    return Blocks()
