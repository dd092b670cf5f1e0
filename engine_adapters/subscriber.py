"""Following an engine's event stream over ZeroMQ: live, replayed at the start, and whole again after every
gap.

vLLM and SGLang speak alike. Live: a PUB socket sends `topic, sequence (8 bytes, big-endian), payload`.
Replay: a ROUTER answers `"", first sequence` with `"", topic, sequence, payload` for all it still has, then
sequence -1. It may drop some on the way, and the end with them, when it is faster than the connection; what
is missing is asked for again.

A sequence number says little by itself: a restarted engine counts from 0 anew. A replay therefore starts with
the last message that was applied: if it comes back with another time of publishing, or not at all, the engine
is not the one that sent it.

Where a replay can't tell everything, a snapshot can, if the source has one: it stands at the beginning and
after every gap that stays, and the stream goes on behind the message up to which it is true.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

import zmq
import zmq.asyncio
import zmq.utils.monitor

from engine_adapters.agent.keys import Keys
from engine_adapters.errors import EngineError, EventsInvalid
from engine_adapters.events import Change, Cleared, Origin, Sink, Tier

LOG = logging.getLogger(__name__)

HIGH_WATER: Final = 100_000
"""Messages that wait for us before the engine's socket drops more: as many as engines keep by default."""
GATHER_S: Final = 0.005
POLL_MS: Final = 500
SETTLE_S: Final = 0.05
REPLAY_SILENCE_S: Final = 3.0
SLICE_MESSAGES: Final = 64
MAX_BACKLOG: Final = 65_536
UNCONNECTED_S: Final = 10.0
RETRY_S: Final = 5.0
IN_MEMORY: Final = frozenset((Tier.GPU, Tier.HOST))
"""Tiers that end with their engine."""


Snapshot = Callable[[], Awaitable[int]]
"""Tells the sink all that is there, in place of what was told before; returns the number of the stream's last
message that it knows of. Raises EngineError where it can't be had."""


class Decoder(Protocol):
    """Payloads of one engine, decoded into changes."""

    def published(self, payload: bytes) -> float:
        """When the engine published this payload, by its clock. Raises EventsInvalid."""

    def feed(self, payload: bytes) -> float:
        """Decode one payload; returns when it was published. Raises EventsInvalid."""

    def take(self) -> list[Change]:
        """All changes decoded since the last call, in order."""


class Endpoints(NamedTuple):
    """Where the events are. With `bind` the engine connects to `events`, else we do.

    vLLM binds only what contains `*` or `::` or starts with `ipc://`; to any other address it connects, and
    of two that connect neither hears the other. So does SGLang, which also binds `0.0.0.0`.
    """

    events: str
    replay: str | None = None
    bind: bool = False

    def of_rank(self, rank: int) -> "Endpoints":
        """Those of a data-parallel rank: rank r publishes at rank 0's port + r."""
        if not rank:
            return self
        replay = _offset(self.replay, rank) if self.replay else None
        return self._replace(events=_offset(self.events, rank), replay=replay)


def _offset(endpoint: str, rank: int) -> str:
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + rank}"


@dataclass(slots=True)
class StreamState:
    """What is known of a stream, for metrics and readiness.

    `heard` is when the last message came, by the subscriber's clock; `published`, when the engine sent it, by
    its own; -inf while nothing was heard since the beginning, a loss or a snapshot. `gaps` were found, `lost`
    of them could not be filled. `unanswered` replays got no end. `failures` are errors of ours, and snapshots
    that could not be had, after each of which the stream was followed anew.
    """

    connected: bool = False
    sequence: int = -1
    heard: float | None = None
    published: float = -math.inf
    messages: int = 0
    gaps: int = 0
    lost: int = 0
    replays: int = 0
    snapshots: int = 0
    unanswered: int = 0
    restarts: int = 0
    invalid: int = 0
    failures: int = 0


class _Replay(Enum):
    """How a replay ended."""

    WHOLE = auto()
    HOLE = auto()
    FORGOTTEN = auto()
    """There is no record any more of what we heard last."""
    RESTARTED = auto()
    UNANSWERED = auto()


class Subscriber:
    """Follows the stream of one origin into a sink. `run` until cancelled; `state` may be read at any time.

    `tiers` are those that are forgotten when a gap can't be filled; of a restarted engine, those of them that
    lie in its memory. `snapshot`, if there is one, then tells them anew. `keys` are for sockets that ask for
    them.
    """

    def __init__(
        self,
        origin: Origin,
        endpoints: Endpoints,
        decoder: Decoder,
        sink: Sink,
        context: zmq.asyncio.Context,
        *,
        tiers: tuple[Tier, ...] = (Tier.GPU,),
        snapshot: Snapshot | None = None,
        keys: Keys | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = StreamState()
        self._origin = origin
        self._endpoints = endpoints
        self._decoder = decoder
        self._sink = sink
        self._context = context
        self._tiers = tiers
        self._snapshot = snapshot
        self._keys = keys
        self._clock = clock
        self._check = asyncio.Event()
        self._told: set[str] = set()

    async def run(self) -> None:
        """Follow the stream, over disconnections, restarts and errors of our own, until cancelled."""
        unconnected = asyncio.get_running_loop().call_later(UNCONNECTED_S, self._unconnected)
        try:
            while True:
                try:
                    await self._connect()
                except EngineError as error:
                    self.state.failures += 1
                    LOG.warning(
                        "event stream of %s: no snapshot: %s; followed anew in %g s",
                        self._endpoints.events,
                        error,
                        RETRY_S,
                    )
                except Exception:
                    self.state.failures += 1
                    LOG.exception(
                        "event stream of %s: failed; followed anew in %g s", self._endpoints.events, RETRY_S
                    )
                self.state.connected = False
                await asyncio.sleep(RETRY_S)
        finally:
            unconnected.cancel()
            self.state.connected = False

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.ipv6 = "[" in self._endpoints.events
        if self._keys is not None:
            self._keys.put_on(socket)
        return socket

    def check(self) -> None:
        """Make sure, soon, that the engine is still the one that was heard last."""
        self._check.set()

    async def _connect(self) -> None:
        socket = self._socket(zmq.SUB)
        socket.set_hwm(HIGH_WATER)
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            if self._endpoints.bind:
                socket.bind(self._endpoints.events)
            else:
                socket.connect(self._endpoints.events)
            await self._follow(socket, monitor)
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    def _unconnected(self) -> None:
        if not self.state.connected:
            LOG.warning(
                "event stream of %s: not connected after %g s; does the engine publish events there?",
                self._endpoints.events,
                UNCONNECTED_S,
            )

    async def _follow(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        direct: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        poller = zmq.asyncio.Poller()
        for each in (monitor, socket):
            poller.register(each, zmq.POLLIN)
        while True:
            ready = dict(await poller.poll(POLL_MS))
            if monitor in ready:
                event = zmq.utils.monitor.parse_monitor_message(await monitor.recv_multipart())["event"]
                self.state.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if self.state.connected:
                    self._check.set()
            if self._check.is_set():
                self._check.clear()
                await asyncio.sleep(SETTLE_S)  # for our subscription to arrive before the replay ends
                await self._catch_up()
                self._hand_over()
            elif socket in ready:
                drained = await self._drain(direct)
                self._hand_over()
                await asyncio.sleep(GATHER_S if drained else 0)

    async def _drain(self, socket: "zmq.Socket[bytes]") -> bool:
        """Decode a slice of what has come; returns whether that was all."""
        for _ in range(SLICE_MESSAGES):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            sequence = _sequence(frames) if len(frames) == 3 else None
            if sequence is not None and sequence >= 0:
                await self._place(sequence, frames[-1])
            else:
                self._invalid("frames", "a message that isn't topic, sequence of 8 bytes, payload")
        await self._room()
        return False

    async def _place(self, sequence: int, payload: bytes) -> None:
        """Apply a live message if it is the next one; else find out what is wrong."""
        expected = self.state.sequence + 1
        if sequence > expected:
            self.state.gaps += bool(expected)
            await self._catch_up()
        elif sequence < expected:
            known = self.state.published
            if known == -math.inf or self._published(payload) <= known:
                return  # the replay or the snapshot had it
            await self._restarted()
            await self._catch_up()
        if sequence > self.state.sequence:
            self._apply(sequence, payload)

    def _apply(self, sequence: int, payload: bytes) -> None:
        self.state.sequence = sequence
        self.state.heard = self._clock()
        self.state.messages += 1
        try:
            self.state.published = self._decoder.feed(payload)
        except EventsInvalid as error:
            self.state.published = self._published(payload)
            self._invalid(type(error.__cause__ or error).__name__, str(error))

    def _published(self, payload: bytes) -> float:
        """When the engine published this; NaN, which equals nothing, where that can't be read."""
        try:
            return self._decoder.published(payload)
        except EventsInvalid:
            return math.nan

    def _invalid(self, kind: str, what: str) -> None:
        """Count it, and warn of the first of its kind: there may be thousands a second."""
        self.state.invalid += 1
        level = logging.DEBUG if kind in self._told else logging.WARNING
        self._told.add(kind)
        LOG.log(
            level, "event stream of %s: %s; is it of another engine version?", self._endpoints.events, what
        )

    def _hand_over(self) -> None:
        changes = self._decoder.take()
        if changes:
            self._sink.push(self._origin, changes)

    async def _room(self) -> None:
        self._hand_over()
        while self._sink.backlog > MAX_BACKLOG:  # noqa: ASYNC110 - the backlog is a number, not an event
            await asyncio.sleep(GATHER_S)

    async def _catch_up(self) -> None:
        """Make up for what was missed: by a replay, as far as the engine still has it; else by a snapshot."""
        if self._endpoints.replay is None:
            await self._lost()
            return
        if self.state.sequence < 0:
            await self._take_snapshot()
        self.state.replays += 1
        before = None
        while before != self.state.sequence:
            before = self.state.sequence
            how = await self._replay(self._endpoints.replay)
            if how is _Replay.WHOLE:
                return
            if how is _Replay.RESTARTED:
                await self._restarted()
                before = None
            elif how is _Replay.FORGOTTEN:
                await self._lost()
                before = None
        self.state.unanswered += 1
        await self._lost()

    async def _replay(self, endpoint: str) -> _Replay:
        """Ask once. A socket of its own, so that no answer to an earlier question comes in between."""
        socket = self._socket(zmq.DEALER)
        socket.set_hwm(0)
        try:
            socket.connect(endpoint)
            await socket.send_multipart([b"", max(self.state.sequence, 0).to_bytes(8, "big")])
            return await self._read_replay(socket)
        finally:
            socket.close(linger=0)

    async def _read_replay(self, socket: zmq.asyncio.Socket) -> _Replay:
        fresh = self.state.published == -math.inf
        read = 0
        while await socket.poll(int(REPLAY_SILENCE_S * 1000)):
            frames = await socket.recv_multipart()
            sequence, payload = _sequence(frames), frames[-1]
            if sequence is None:
                self._invalid("replay", "a replay's answer that doesn't end in sequence of 8 bytes, payload")
                return _Replay.HOLE
            if sequence < 0:
                return _Replay.WHOLE if read or fresh else _Replay.RESTARTED
            if read and sequence != self.state.sequence + 1:
                return _Replay.HOLE
            broken = None if read else self._first(sequence, payload)
            if broken is not None:
                return broken
            if sequence > self.state.sequence:
                self._apply(sequence, payload)
            read += 1
            if read % SLICE_MESSAGES == 0:
                await self._room()
                await asyncio.sleep(0)
        return _Replay.UNANSWERED

    def _first(self, sequence: int, payload: bytes) -> _Replay | None:
        """What a replay's first message shows; None: it goes on from where we are."""
        state = self.state
        if state.published == -math.inf:
            if self._snapshot is not None and sequence > state.sequence + 1:
                return _Replay.FORGOTTEN
            if sequence == state.sequence:
                state.published = self._published(payload)
            return None
        if sequence > state.sequence:
            return _Replay.FORGOTTEN
        return None if self._published(payload) == state.published else _Replay.RESTARTED

    async def _take_snapshot(self) -> None:
        if self._snapshot is not None:
            self._hand_over()
            self.state.sequence = await self._snapshot()
            self.state.published = -math.inf
            self.state.snapshots += 1

    async def _restarted(self) -> None:
        """Another engine answers: what the last one said of its memory is void."""
        self.state.restarts += 1
        LOG.warning(
            "event stream of %s: the engine restarted, or has no record of what it sent",
            self._endpoints.events,
        )
        await self._forget(tuple(tier for tier in self._tiers if tier in IN_MEMORY))

    async def _lost(self) -> None:
        """A gap stays: some of what was heard may be wrong by now."""
        if self.state.sequence >= 0:
            self.state.lost += 1
            LOG.warning("event stream of %s: messages are lost and can't be replayed", self._endpoints.events)
            await self._forget(self._tiers)

    async def _forget(self, tiers: tuple[Tier, ...]) -> None:
        """Take back what was heard of these tiers; a snapshot, if there is one, tells what is true now."""
        self._hand_over()
        self._sink.push(self._origin, [Cleared(tiers)])
        self.state.sequence = -1
        self.state.published = -math.inf
        await self._take_snapshot()


def _sequence(frames: list[bytes]) -> int | None:
    """The number in the last frame but one, negative at the end of a replay; None where there is none."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big", signed=True)
