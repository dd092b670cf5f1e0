"""Long answers to clients that are slow, mute or gone."""

from collections.abc import Iterator

import pytest
import zmq

from engine_adapters.agent.outgoing import MOST, PATIENCE_S, Outgoing

COUNT = 60
BODY = bytes(100_000)


class Rig:
    def __init__(self) -> None:
        self.context: zmq.Context = zmq.Context()
        self.now = 0.0
        self.clients: list[zmq.Socket] = []
        self.router = self.context.socket(zmq.ROUTER)
        self.router.router_mandatory = True
        self.router.sndhwm = 4
        self.router.sndbuf = 10_000
        self.router.bind("tcp://127.0.0.1:*")
        self.outgoing = Outgoing(self.router, clock=lambda: self.now)

    def client(self) -> tuple[zmq.Socket, bytes]:
        """A client that takes little at a time, and its name."""
        socket = self.context.socket(zmq.DEALER)
        self.clients.append(socket)
        socket.rcvhwm = 1
        socket.rcvbuf = 10_000
        socket.connect(self.router.last_endpoint)
        socket.send(b"hello")
        return socket, self.router.recv_multipart()[0]

    def begin(self, peer: bytes) -> None:
        self.outgoing.add(peer, ([b"%d" % number, BODY] for number in range(COUNT)))


@pytest.fixture
def rig() -> Iterator[Rig]:
    one = Rig()
    yield one
    one.context.destroy(linger=0)


def test_a_slow_client_gets_all_in_order(rig: Rig) -> None:
    client, peer = rig.client()
    rig.begin(peer)
    for _ in range(200):
        rig.outgoing.move()
    assert rig.outgoing, "it fits into buffers, and shows nothing"
    came = []
    while len(came) < COUNT:
        rig.outgoing.move()
        if client.poll(10):
            came.append(int(client.recv_multipart()[0]))
    assert came == list(range(COUNT))
    rig.outgoing.move()
    assert not rig.outgoing


def test_a_mute_client_is_given_up_and_holds_up_nobody(rig: Rig) -> None:
    _, mute = rig.client()
    client, peer = rig.client()
    rig.begin(mute)
    rig.begin(peer)
    came = 0
    while came < COUNT:
        rig.outgoing.move()
        came += bool(client.poll(10) and client.recv_multipart())
    rig.outgoing.move()
    assert rig.outgoing
    rig.now = PATIENCE_S
    rig.outgoing.move()
    assert not rig.outgoing


def test_a_client_that_has_gone_is_dropped(rig: Rig) -> None:
    rig.begin(b"nobody")
    rig.outgoing.move()
    assert not rig.outgoing


def test_it_takes_on_so_many(rig: Rig) -> None:
    for _ in range(MOST):
        assert not rig.outgoing.full
        rig.begin(b"nobody")
    assert rig.outgoing.full
