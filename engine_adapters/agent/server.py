"""The agent: a thread in the engine's process that answers calls and tells what changes in the tiers.

It works while the engine is idle, and stays out of the scheduler's way while it isn't: a turn does little,
and between turns it waits in ZeroMQ, which doesn't hold the interpreter. Whatever is sent to it, it goes on.
"""

import contextlib
import logging
import secrets
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Final

import msgspec
import zmq

from engine_adapters import wire
from engine_adapters.agent.base import Inside
from engine_adapters.agent.calls import Calls, Pages, Steps
from engine_adapters.agent.door import Door
from engine_adapters.agent.outgoing import Outgoing
from engine_adapters.agent.sockets import bound, leave
from engine_adapters.agent.stream import Stream
from engine_adapters.errors import AgentRefused, SettingsError, WireError
from engine_adapters.settings import AgentSettings, PinSettings

LOG = logging.getLogger(__name__)

IDLE_MS: Final = 20
BUSY_MS: Final = 1
EAGER_S: Final = 0.2
"""So long after a call began, its end is looked for at every `BUSY_MS`."""
AT_ONCE: Final = 16
"""Calls taken in one turn."""
MOST_OPEN: Final = 256
"""Calls that wait at a time."""
MOST_UNSENT: Final = 256
"""Messages that wait for one client; a long answer waits until there is room."""
MOST_UNHEARD: Final = 2_000
"""Messages of the stream that wait for one subscriber, who must ask for what comes after them."""
SWEEP_S: Final = 0.5
REST_S: Final = 0.1
"""After a failure of its own."""


class _Open:
    """A call that isn't answered yet."""

    def __init__(self, peer: bytes, number: int, steps: Steps) -> None:
        self.peer = peer
        self.number = number
        self.steps = steps
        self.began = time.monotonic()


class Agent:
    """One engine's, or one of its ranks'. It runs from its making until `close`."""

    def __init__(self, inside: Inside, settings: AgentSettings, pins: PinSettings, rank: int = 0) -> None:
        """Bind and start. Raises SettingsError if it can't have its addresses, or its keys are none."""
        if settings.bind is None:
            raise SettingsError("agent.bind: say where, such as tcp://127.0.0.1:5600")
        self.epoch = secrets.randbits(63) or 1
        self.endpoints = wire.endpoints(settings.bind, rank)
        self.failures = 0
        """Errors of ours; each was answered, or is in the log."""
        self._context = zmq.Context()
        try:
            self._open_sockets(settings)
        except SettingsError:
            self._context.destroy(linger=0)
            raise
        self._answers = Outgoing(self._control)
        self._replays = Outgoing(self._replay)
        self._stream = Stream(inside.tiers, self.epoch, self._tell)
        self._calls = Calls(inside, pins, self.epoch, lambda: self._stream.sequence)
        self._open: list[_Open] = []
        self._swept = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpkv-agent", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it may still answer."""
        return self._thread.is_alive()

    def close(self, seconds: float = 5.0) -> None:
        """End: what is open isn't answered any more, and keeps no pages. Waits that long at the most."""
        self._ending.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            LOG.warning("the agent at %s hangs; it is left as it is", self.endpoints.control)

    # -- sockets ----------------------------------------------------------------------------------

    def _open_sockets(self, settings: AgentSettings) -> None:
        self._door = None
        if settings.key_file is not None and settings.clients_file is not None:
            self._door = Door(self._context, settings.key_file, settings.clients_file)
        ends, door = self.endpoints, self._door
        self._control = bound(self._context, zmq.ROUTER, ends.control, MOST_UNSENT, door)
        self._events = bound(self._context, zmq.PUB, ends.events, MOST_UNHEARD, door)
        self._replay = bound(self._context, zmq.ROUTER, ends.replay, MOST_UNSENT, door)
        self._poller = zmq.Poller()
        for socket in (self._control, self._replay, *([self._door.socket] if self._door else [])):
            self._poller.register(socket, zmq.POLLIN)

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - told by `_failed`; the engine goes on
                self._failed(error)
                self._ending.wait(REST_S)
        with contextlib.suppress(Exception):
            self._calls.close(1.0)
        self._stream.close()
        for endpoint in self.endpoints:  # while nobody else can have it
            leave(endpoint)
        self._context.destroy(linger=0)

    def _turn(self) -> None:
        more = self._stream.publish()
        ready = dict(self._poller.poll(0 if more else BUSY_MS if self._busy() else IDLE_MS))
        if self._door is not None and self._door.socket in ready:
            self._door.answer()
        if self._replay in ready:
            self._begin_replay()
        if self._control in ready:
            self._receive()
        self._open = [one for one in self._open if not self._advance(one)]
        self._answers.move()
        self._replays.move()
        if time.monotonic() - self._swept > SWEEP_S:
            self._swept = time.monotonic()
            self._calls.sweep()

    def _busy(self) -> bool:
        """Whether something may be ready soon. A call that waits long can wait a little longer."""
        newest = self._open[-1].began if self._open else 0.0
        return bool(self._answers or self._replays or time.monotonic() - newest < EAGER_S)

    def _receive(self) -> None:
        for _ in range(AT_ONCE):
            try:
                peer, *frames = self._control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(peer, frames[-1] if frames else b"")

    def _take(self, peer: bytes, frame: bytes) -> None:
        number = 0
        try:
            envelope = _ENVELOPE.decode(frame)
            number = envelope.number
            if envelope.version != wire.VERSION:
                what = f"version {envelope.version} isn't spoken here, but {wire.VERSION}"
                raise AgentRefused("version", f"{what}: use the same HPKV on both sides")
            call = _CALL.decode(envelope.body)
            if len(self._open) >= MOST_OPEN:
                raise AgentRefused("busy", f"{MOST_OPEN} calls wait already: ask again later")
        except (msgspec.DecodeError, RecursionError) as error:
            self._answer(peer, number, _refused(AgentRefused("invalid", f"no call: {error}")))
        except AgentRefused as error:
            self._answer(peer, number, _refused(error))
        else:
            one = _Open(peer, number, self._calls.begin(call))
            if not self._advance(one):
                self._open.append(one)

    def _advance(self, one: _Open) -> bool:
        """Take a call one step further; returns whether it is answered."""
        try:
            next(one.steps)
        except StopIteration as end:
            self._answer(one.peer, one.number, end.value)
        except AgentRefused as error:
            self._answer(one.peer, one.number, _refused(error))
        except WireError as error:
            self._answer(one.peer, one.number, _refused(AgentRefused("invalid", str(error))))
        except Exception as error:  # noqa: BLE001 - told by `_failed` and to the client
            self._failed(error)
            refused = AgentRefused("failed", f"the engine's log says more of this {type(error).__name__}")
            self._answer(one.peer, one.number, _refused(refused))
        else:
            return False
        return True

    def _answer(self, peer: bytes, number: int, answer: wire.Answer | Pages) -> None:
        if isinstance(answer, Pages):
            if not self._answers.full:
                self._answers.add(peer, ([_frame(number, listing)] for listing in answer))
                return
            answer = _refused(AgentRefused("busy", "too many snapshots are on their way: ask again later"))
        # A client that is gone, or takes nothing, gets no answer.
        with contextlib.suppress(zmq.ZMQError):
            self._control.send_multipart([peer, _frame(number, answer)], zmq.NOBLOCK)

    def _tell(self, frames: list[bytes]) -> None:
        self._events.send_multipart(frames)

    def _begin_replay(self) -> None:
        peer, *frames = self._replay.recv_multipart()
        if len(frames) == 2 and len(frames[1]) == 8 and not self._replays.full:
            first = self._stream.replay(int.from_bytes(frames[1], "big", signed=True))
            self._replays.add(peer, _behind(frames[0], first))

    def _failed(self, error: Exception) -> None:
        """Tell where, and of what kind, but not its text: it may quote a prompt or a key."""
        self.failures += 1
        trace = "".join(traceback.format_tb(error.__traceback__))
        LOG.error("the agent at %s failed: %s\n%s", self.endpoints.control, type(error).__name__, trace)


def _refused(error: AgentRefused) -> wire.Refused:
    return wire.Refused(code=error.code, message=str(error))


def _frame(number: int, answer: wire.Answer) -> bytes:
    return _encode(wire.Envelope(wire.VERSION, number, msgspec.Raw(_encode(answer))))


def _behind(empty: bytes, messages: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    return ([empty, *message] for message in messages)


_ENVELOPE = msgspec.msgpack.Decoder(wire.Envelope)
_CALL: msgspec.msgpack.Decoder[wire.Call] = msgspec.msgpack.Decoder(wire.Call)
_encode = msgspec.msgpack.Encoder().encode
