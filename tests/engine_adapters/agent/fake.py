"""A socket that answers as a test says, for the client's tests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import zmq

from engine_adapters import wire

Answering = Callable[[wire.Envelope], list[bytes]]


def envelope(number: int, body: object, version: int = wire.VERSION) -> bytes:
    raw = msgspec.Raw(msgspec.msgpack.encode(body))
    return msgspec.msgpack.encode(wire.Envelope(version, number, raw))


@contextmanager
def answering(endpoint: str, how: Answering) -> Iterator[list[wire.Envelope]]:
    """Answer each call with the frames that `how` gives; yields the calls that came."""
    came: list[wire.Envelope] = []
    ended = threading.Event()
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(endpoint)

    def serve() -> None:
        with context, socket:
            socket.linger = 0
            while not ended.is_set():
                if socket.poll(10):
                    peer, frame = socket.recv_multipart()
                    came.append(msgspec.msgpack.decode(frame, type=wire.Envelope))
                    for answer in how(came[-1]):
                        socket.send_multipart([peer, answer])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield came
    finally:
        ended.set()
        thread.join()
