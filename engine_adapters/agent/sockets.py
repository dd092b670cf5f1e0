"""The agent's sockets, bound where nobody else answers."""

import socket as plain
from pathlib import Path
from typing import Any

import zmq

from engine_adapters import wire
from engine_adapters.agent.door import Door
from engine_adapters.errors import SettingsError


def bound(
    context: "zmq.Context[Any]", kind: int, endpoint: str, most_unsent: int, door: Door | None
) -> "zmq.Socket[bytes]":
    """A socket that holds `most_unsent` messages for each peer. Raises SettingsError."""
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.linger = 0
    socket.sndhwm = most_unsent
    socket.maxmsgsize = wire.MAX_FRAME
    socket.ipv6 = "[" in endpoint
    if kind == zmq.ROUTER:
        socket.router_mandatory = True  # so it says when a peer is gone or takes nothing
    if door is not None:
        door.guard(socket)
    try:
        _refuse_taken(endpoint)
        socket.bind(endpoint)
    except (zmq.ZMQError, OSError) as error:
        raise SettingsError(
            f"agent.bind: {endpoint} can't be had ({error}): an agent takes three addresses, for calls, "
            "stream and replay; each rank has its own"
        ) from error
    return socket


def leave(endpoint: str) -> None:
    """Before a bound socket is closed: take its file away, which ZeroMQ leaves behind."""
    scheme, _, path = endpoint.partition("://")
    if scheme == "ipc":
        Path(path).unlink(missing_ok=True)


def _refuse_taken(endpoint: str) -> None:
    """ZeroMQ wraps a port that is too high, and takes a socket file away from whoever answers there."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "tcp":
        if int(rest.rpartition(":")[2]) > 65535:
            raise OSError("there is no such port")
        return
    with plain.socket(plain.AF_UNIX, plain.SOCK_STREAM) as probe:
        try:
            probe.connect(rest)
        except OSError:
            return  # nobody answers: what is there was left behind
    raise OSError("somebody answers there")
