"""Long answers on their way to clients that may be slow, mute or gone."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import zmq

MOST: Final = 16
"""Long answers at a time, on one socket."""
AT_ONCE: Final = 8
"""Messages of each in one turn."""
PATIENCE_S: Final = 10.0
"""So long a client may take nothing."""

Frames = list[bytes]


class _Sending:
    def __init__(self, peer: bytes, messages: Iterator[Frames], now: float) -> None:
        self.peer = peer
        self.messages = messages
        self.next: Frames | None = None
        self.moved = now


class Outgoing:
    """By turns, a few messages of each. The ROUTER must be mandatory: so it says when a client is gone."""

    def __init__(self, socket: "zmq.Socket[bytes]", clock: Callable[[], float] = time.monotonic) -> None:
        self._socket = socket
        self._clock = clock
        self._sending: deque[_Sending] = deque()

    def __bool__(self) -> bool:
        """Whether there is more to send."""
        return bool(self._sending)

    @property
    def full(self) -> bool:
        """Whether no more can be taken on."""
        return len(self._sending) >= MOST

    def add(self, peer: bytes, messages: Iterator[Frames]) -> None:
        """Send these after what is being sent."""
        self._sending.append(_Sending(peer, messages, self._clock()))

    def move(self) -> None:
        """Send as much as a turn allows and the clients take."""
        for _ in range(len(self._sending)):
            one = self._sending.popleft()
            if self._advance(one):
                self._sending.append(one)

    def _advance(self, one: _Sending) -> bool:
        """Returns whether there is more to send."""
        for _ in range(AT_ONCE):
            if one.next is None:
                one.next = next(one.messages, None)
            if one.next is None:
                return False
            try:
                self._socket.send_multipart([one.peer, *one.next], zmq.NOBLOCK)
            except zmq.Again:
                return self._clock() - one.moved < PATIENCE_S
            except zmq.ZMQError:
                return False  # it has gone
            one.next, one.moved = None, self._clock()
        return True
