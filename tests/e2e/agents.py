"""Conversations with the agent of a real engine, and its tier stream."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import numpy as np
import zmq.asyncio

from engine_adapters import wire
from engine_adapters.agent.client import AgentClient
from engine_adapters.agent.decoder import TierEvents
from engine_adapters.agent.keys import Keys
from engine_adapters.events import PageEvents, Tier

T = TypeVar("T")


def ask(agent: str, talk: Callable[[AgentClient], Awaitable[T]], keys: Keys | None = None) -> T:
    """One conversation with the agent at an endpoint."""

    async def conversation() -> T:
        with zmq.asyncio.Context() as context:
            async with AgentClient(agent, context, keys, timeout_s=30) as client:
                return await talk(client)

    return asyncio.run(conversation())


def listed(agent: str, tier: wire.TierName) -> set[int]:
    """The prefix keys of a tier's snapshot."""

    async def pieces(client: AgentClient) -> set[int]:
        return {key async for piece in client.snapshot(tier) for key in piece.keys.tolist()}

    return ask(agent, pieces)


def spans(found: wire.Found | wire.Order) -> list[tuple[str, int]]:
    return [(span.tier, span.end) for span in found.spans]


async def brought(client: AgentClient, ticket: int) -> wire.Progress:
    while (progress := await client.status(ticket)).running:
        await asyncio.sleep(0.01)
    return progress


class Followed:
    """What an agent's stream has told since it was followed."""

    def __init__(self) -> None:
        self.held: dict[Tier, set[int]] = {tier: set() for tier in Tier}
        """Prefix keys of the pages that came and haven't gone."""
        self.sequences: list[int] = []
        self._events = TierEvents()

    def take(self, frames: list[bytes]) -> None:
        self.sequences.append(int.from_bytes(frames[1], "big"))
        self._events.feed(frames[2])
        for change in self._events.take():
            assert isinstance(change, PageEvents)
            runs = np.split(change.keys, np.cumsum(change.counts)[:-1])
            for came, tier, run in zip(change.stored, change.tiers, runs, strict=True):
                held = self.held[Tier(tier)]
                (held.update if came else held.difference_update)(run.tolist())

    def tiers_with(self, keys: set[int]) -> set[Tier]:
        """Tiers that have all of these pages."""
        return {tier for tier, held in self.held.items() if keys <= held}

    @property
    def whole(self) -> bool:
        """Whether no message was missed."""
        return self.sequences == list(range(self.sequences[0], self.sequences[0] + len(self.sequences)))


@contextlib.contextmanager
def following(agent: str) -> Iterator[Followed]:
    """Follow an agent's stream, from before this yields until it is left."""
    followed, ended = Followed(), threading.Event()

    def follow(socket: "zmq.Socket[bytes]") -> None:
        while not ended.is_set():
            if socket.poll(100):
                followed.take(socket.recv_multipart())

    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.rcvhwm = 0
        socket.subscribe(wire.TOPIC)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        socket.connect(wire.endpoints(agent).events)
        assert monitor.poll(30_000), "nobody publishes there"
        socket.disable_monitor()
        monitor.close(linger=0)
        thread = threading.Thread(target=follow, args=(socket,))
        thread.start()
        try:
            yield followed
        finally:
            ended.set()
            thread.join()
