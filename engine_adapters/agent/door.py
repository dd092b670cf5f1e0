"""Who may connect: ZeroMQ asks for each new CURVE connection (ZAP, RFC 27), the agent's thread answers."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils import z85

from engine_adapters.agent.keys import read_all, read_key
from engine_adapters.settings import AgentSettings

DOMAIN: Final = b"hpkv"


def check(settings: AgentSettings) -> None:
    """See that an agent's files hold keys. Raises SettingsError."""
    if settings.key_file is not None and settings.clients_file is not None:
        read_key(settings.key_file)
        read_all(settings.clients_file)


class Door:
    """Lets in the holders of the listed keys. Sockets of its context, each once it is guarded."""

    def __init__(self, context: "zmq.Context[Any]", key_file: Path, clients_file: Path) -> None:
        """Raises SettingsError."""
        self._secret = read_key(key_file)
        self._clients: Collection[bytes] = frozenset(z85.decode(key) for key in read_all(clients_file))
        self.socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def guard(self, socket: "zmq.Socket[bytes]") -> None:
        """Before the socket binds."""
        socket.curve_server = True
        socket.curve_secretkey = self._secret
        socket.zap_domain = DOMAIN

    def answer(self) -> None:
        """Answer one question."""
        frames = self.socket.recv_multipart()
        head, rest = frames[: frames.index(b"") + 1], frames[frames.index(b"") + 1 :]
        version, request = rest[:2]
        domain, mechanism, credentials = rest[2], rest[5], rest[6:]
        welcome = domain == DOMAIN and mechanism == b"CURVE" and credentials[0] in self._clients
        status = [b"200", b"OK"] if welcome else [b"400", b"unknown key"]
        self.socket.send_multipart([*head, version, request, *status, b"", b""])
