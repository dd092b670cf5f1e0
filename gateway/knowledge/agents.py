"""Following a replica's agent into the index: who it is, how it is, and what its tiers hold.

Nothing here holds up a request. An agent that can't be reached, is mute, speaks another version or belongs to
another kind of engine costs what the lower tiers would have saved, and no more.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import zmq.asyncio

from engine_adapters.agent.client import AgentClient, Piece
from engine_adapters.agent.decoder import TierEvents
from engine_adapters.base import AgentAddress
from engine_adapters.errors import (
    AgentRefused,
    EngineDisconnected,
    EngineError,
    EngineTimeout,
    EngineUnreachable,
    WireError,
)
from engine_adapters.events import SLICE_BLOCKS, Cleared, Origin, PageEvents, Sink, Tier
from engine_adapters.subscriber import MAX_BACKLOG, Endpoints, Subscriber
from engine_adapters.wire import Identity
from gateway.fleet import Agent, Replica
from gateway.fleet.agent import TIER_NAMES
from gateway.index import IndexFullError, Store

log = logging.getLogger(__name__)

POLL_S: Final = 1.0
ANSWER_S: Final = 3.0
PATIENCE_S: Final = 10.0
"""How long an agent that was well may be mute: an engine may hold its interpreter for seconds."""
PIECE_S: Final = 15.0
"""For a piece of a snapshot: the agent may have to walk a large tier before the first."""
GATHER_S: Final = 0.005
SHARED_AGAIN_S: Final = 1200.0
"""What lies on shared storage is a hint that expires; this is often enough to renew it."""
OWN: Final = (Tier.HOST, Tier.SSD)
"""Tiers of an agent that are its replica's alone."""

Attach = Callable[[Mapping[Tier, int], Store | None], None]
"""Tells the index of a replica's page sizes and store. Raises IndexFullError."""


class Follower:
    """Follows one replica's agent until cancelled. `agent` says what is known of it.

    Args:
        shared_pages: the most that are taken in of a shared store at once, so that they don't push all else
            out of the index.
    """

    def __init__(
        self,
        replica: Replica,
        address: AgentAddress,
        sink: Sink,
        attach: Attach,
        context: zmq.asyncio.Context,
        shared_pages: int,
    ) -> None:
        self.agent = Agent(replica.name, AgentClient(address.endpoints.control, context, address.keys))
        self.stream: Subscriber | None = None
        self._origin = Origin(replica.name, replica.rank)
        self._kind = replica.engine.kind
        self._address = address
        self._sink = sink
        self._attach = attach
        self._context = context
        self._shared_pages = shared_pages
        self._heard = -PATIENCE_S
        self._shared_told = 0.0
        self._streaming: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Ask it again and again how it is, and follow its stream while it answers."""
        try:
            while True:
                try:
                    await self._look()
                except (EngineError, IndexFullError) as error:
                    await self._unanswered(error)
                except Exception as error:
                    # Whoever died here would be believed for ever.
                    log.exception("following an agent failed", extra={"replica": self._origin.replica})
                    await self._lose(f"following it failed: {type(error).__name__}")
                await asyncio.sleep(POLL_S)
        finally:
            self.agent.lose("it isn't followed")
            await self._end_stream()
            await self.agent.client.close()

    async def _look(self) -> None:
        client, known = self.agent.client, self.agent.identity
        identity = await client.hello(ANSWER_S)
        self._check(identity)
        statistics = await client.stats(ANSWER_S)
        if known is None or _another(known, identity) or (self.stream is None and _tiers(identity)):
            await self._begin(identity)
        self.agent.answered(identity, statistics)
        self._heard = time.monotonic()
        if Tier.SHARED in _tiers(identity) and self._heard - self._shared_told > SHARED_AGAIN_S:
            await self._tell(identity, Tier.SHARED)

    def _check(self, identity: Identity) -> None:
        if identity.engine != self._kind:
            raise WireError(
                f"it is an agent of {identity.engine}, and the replica is {self._kind}: is the address right?"
            )
        if identity.page_tokens < 1:
            raise WireError(f"it says that a page has {identity.page_tokens} tokens")

    async def _begin(self, identity: Identity) -> None:
        """It is new, or another than before: nothing that was said of its memory holds, nor of tiers from
        which it loads no longer."""
        await self._end_stream()
        pages = dict.fromkeys(_tiers(identity), identity.page_tokens)
        before = _tiers(self.agent.identity) if self.agent.identity is not None else ()
        gone = {Tier.HOST} & pages.keys() | set(before) - pages.keys()
        if own := tuple(tier for tier in OWN if tier in gone):
            self._sink.push(self._origin, [Cleared(own)])
        store = Store(identity.store_id, identity.namespace) if identity.store_id else None
        self._attach(pages, store)
        if not pages:
            return
        self._shared_told = time.monotonic()  # the stream begins with a snapshot
        control = self._address.endpoints
        self.stream = Subscriber(
            self._origin,
            Endpoints(control.events, control.replay),
            TierEvents(),
            self._sink,
            self._context,
            tiers=tuple(tier for tier in OWN if tier in pages),
            snapshot=lambda: self._snapshot(identity),
            keys=self._address.keys,
        )
        self._streaming = asyncio.create_task(self.stream.run(), name=f"tiers {self._origin.replica}")

    async def _snapshot(self, identity: Identity) -> int:
        """All that its tiers hold; the fastest last, which are worth most and so the last to be evicted."""
        told = [await self._tell(identity, tier) for tier in reversed(_tiers(identity))]
        return min((sequence for sequence in told if sequence is not None), default=-1)

    async def _tell(self, identity: Identity, tier: Tier) -> int | None:
        """One tier's pages; None where it can't list them, so that they are learned from what happens."""
        sequence, left = None, self._shared_pages if tier is Tier.SHARED else 1 << 62
        try:
            async with contextlib.aclosing(self.agent.client.snapshot(TIER_NAMES[tier], PIECE_S)) as pieces:
                async for piece in pieces:
                    if sequence is None and tier in OWN:
                        self._sink.push(self._origin, [Cleared((tier,))])
                    sequence = piece.sequence
                    await self._push(tier, piece)
                    left -= len(piece.keys)
                    if left <= 0:
                        break
        except AgentRefused as error:
            if error.code != "unsupported":
                raise
        if tier is Tier.SHARED:
            self._shared_told = time.monotonic()
        return sequence

    async def _push(self, tier: Tier, piece: Piece) -> None:
        for at in range(0, len(piece.keys), SLICE_BLOCKS):
            keys = piece.keys[at : at + SLICE_BLOCKS]
            pages = PageEvents(
                stored=np.array([True]),
                tiers=np.array([tier], np.uint8),
                counts=np.array([len(keys)]),
                keys=keys,
                ends=piece.ends[at : at + SLICE_BLOCKS],
            )
            self._sink.push(self._origin, [pages])
        while self._sink.backlog > MAX_BACKLOG:  # noqa: ASYNC110 - the backlog is a number, not an event
            await asyncio.sleep(GATHER_S)

    async def _unanswered(self, error: Exception) -> None:
        mute = isinstance(error, EngineTimeout | EngineDisconnected | EngineUnreachable)
        if not mute or time.monotonic() - self._heard >= PATIENCE_S:
            await self._lose(str(error))

    async def _lose(self, reason: str) -> None:
        """The replica goes on as one without an agent: what its lower tiers hold can't be vouched for."""
        self.agent.lose(reason)
        identity = self.agent.identity
        if identity is not None and self.stream is not None:
            await self._end_stream()
            self._sink.push(self._origin, [Cleared(tuple(t for t in OWN if t in _tiers(identity)))])

    async def _end_stream(self) -> None:
        if self._streaming is not None:
            self._streaming.cancel()
            await asyncio.gather(self._streaming, return_exceptions=True)
        self.stream = self._streaming = None


def _another(one: Identity, other: Identity) -> bool:
    """Whether an engine was started again, or loads from other tiers than it did."""
    return one.epoch != other.epoch or _tiers(one) != _tiers(other)


def _tiers(identity: Identity) -> list[Tier]:
    """The agent's, fastest first. Those that it loads nothing from are the engine's own (`gpu`, and SGLang's
    host tier): what lies there, the engine's events tell."""
    known = identity.tiers
    return [
        tier
        for tier in (Tier.HOST, Tier.SSD, Tier.SHARED)
        if (name := TIER_NAMES[tier]) in known and known[name].tokens_per_s
    ]
