"""A client's connection to one agent: whether it stands, why it doesn't, and what comes over it.

Frames are sent only while it stands: nothing waits in a queue to reach an agent, or the one after it, when
nobody cares any more. Once it has stood it comes back by itself.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import zmq
import zmq.asyncio
import zmq.utils.monitor

from engine_adapters import wire
from engine_adapters.agent.keys import Keys
from engine_adapters.errors import EngineDisconnected, EngineUnreachable

HEARTBEAT_MS: Final = 5_000
"""A peer that says nothing for twice as long is gone."""
RETRY_MS: Final = 2_000
"""The longest between two attempts."""
SLICE_FRAMES: Final = 16
_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
)
_NOBODY: Final = "nobody listens there"
_GONE: Final = "it has gone"
_UNWELCOME: Final = "who listens there turns this client away: check its key, and the agent's"


class _State(Enum):
    TRYING = auto()
    UP = auto()
    DOWN = auto()
    """The last attempt failed; others follow by themselves."""


class Link:
    """On one event loop. It connects when something is to be sent for the first time."""

    def __init__(
        self,
        endpoint: str,
        context: zmq.asyncio.Context,
        keys: Keys | None,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[EngineDisconnected], None],
    ) -> None:
        """`on_lost` is called when a connection that stood has ended."""
        self.endpoint = endpoint
        self._context = context
        self._keys = keys
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._state = _State.TRYING
        self._why = ""
        self._changed = asyncio.Event()
        self._socket: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None

    async def send(self, frame: bytes, timeout_s: float) -> None:
        """Send once the first attempt to connect has ended, which may take `timeout_s`. Raises
        EngineUnreachable, and then nothing was sent."""
        socket = await self._connected(timeout_s)
        try:
            await socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise EngineUnreachable(f"the agent at {self.endpoint} takes no more calls: {error}") from error

    async def close(self) -> None:
        """Leave nothing behind; sending connects again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _connected(self, timeout_s: float) -> zmq.asyncio.Socket:
        if self._task is None:
            self._state, self._changed = _State.TRYING, asyncio.Event()
            self._task = asyncio.create_task(self._run(), name=f"agent {self.endpoint}")
        if self._state is _State.TRYING:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                self._why = f"no connection in {timeout_s:g} s"
        if self._state is not _State.UP or self._socket is None:
            raise EngineUnreachable(f"the agent at {self.endpoint} can't be reached: {self._why}")
        return self._socket

    async def _run(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        monitor = socket.get_monitor_socket(_EVENTS)
        try:
            socket.immediate = True  # only to a connection that stands
            socket.ipv6 = "[" in self.endpoint
            socket.maxmsgsize = wire.MAX_FRAME
            socket.heartbeat_ivl = HEARTBEAT_MS
            socket.reconnect_ivl_max = RETRY_MS
            if self._keys is not None:
                self._keys.put_on(socket)
            socket.connect(self.endpoint)
            self._socket = socket
            await self._follow(socket, monitor)
        except zmq.ZMQError as error:
            self._to(_State.DOWN, str(error))
        finally:
            self._socket = None
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    async def _follow(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        direct: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        poller = zmq.asyncio.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        while True:
            ready = dict(await poller.poll())
            if socket in ready:
                await self._drain(direct)
            elif monitor in ready:  # what came before the end is read before it
                self._notice(zmq.utils.monitor.parse_monitor_message(await monitor.recv_multipart())["event"])

    async def _drain(self, socket: "zmq.Socket[bytes]") -> None:
        for _ in range(SLICE_FRAMES):
            try:
                self._on_frame(socket.recv_multipart(zmq.NOBLOCK)[-1])
            except zmq.Again:
                return
        await asyncio.sleep(0)

    def _notice(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._to(_State.UP, "")
        elif event == zmq.EVENT_CONNECT_RETRIED:
            self._to(_State.DOWN, self._why or _NOBODY)
        elif event == zmq.EVENT_DISCONNECTED and self._state is _State.UP:
            self._to(_State.DOWN, _GONE)
            self._on_lost(
                EngineDisconnected(f"the agent at {self.endpoint} has gone, or dropped this client")
            )
        else:
            self._to(_State.DOWN, _UNWELCOME)

    def _to(self, state: _State, why: str) -> None:
        self._state, self._why = state, why
        self._changed.set()
