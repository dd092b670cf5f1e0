"""Keys of the agent's sockets: CURVE, as ZeroMQ does it (RFC 26), each key 40 characters of Z85."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85

from engine_adapters.errors import SettingsError

_KEY = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class Keys(NamedTuple):
    """What a client needs: its own secret key, and the public key of the agent that it means to reach."""

    secret: bytes
    server: bytes

    def put_on(self, socket: "zmq.Socket[Any]") -> None:
        """Before the socket connects."""
        socket.curve_secretkey = self.secret
        socket.curve_publickey = zmq.curve_public(self.secret)
        socket.curve_serverkey = self.server


def read_keys(secret: Path, server: Path) -> Keys:
    """A client's keys from their files. Raises SettingsError."""
    return Keys(read_key(secret), read_key(server))


def read_key(path: Path) -> bytes:
    """The one key in a file. Raises SettingsError."""
    found = read_all(path)
    if len(found) != 1:
        raise SettingsError(
            f"{path} holds {len(found)} keys: it should be one, as `hpkv agent keys` makes it"
        )
    return found[0]


def public_of(secret: Path) -> str:
    """The public key that belongs to the secret one in a file. Raises SettingsError."""
    return zmq.curve_public(read_key(secret)).decode()


def read_all(path: Path) -> list[bytes]:
    """The keys in a file: one a line, what follows it is a comment, as is a line that begins with #.

    Raises SettingsError.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    return list(_keys(path, lines))


def make(folder: Path) -> bytes:
    """A new pair, as `secret.key` (for its owner's eyes only) and `public.key`; returns the public one.

    Raises SettingsError, also where there is one already.
    """
    public, secret = zmq.curve_keypair()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "secret.key").touch(0o600, exist_ok=False)
        (folder / "secret.key").write_bytes(secret + b"\n")
        (folder / "public.key").write_bytes(public + b"\n")
    except OSError as error:
        raise SettingsError(f"{error.filename}: {error.strerror}") from error
    return public


def _keys(path: Path, lines: list[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        key, _, _ = line.strip().partition(b" ")
        if is_key(key):
            yield key
        elif key and not key.startswith(b"#"):  # no key does
            raise SettingsError(f"{path}, line {number}: no key of 40 characters, and no comment")


def is_key(key: bytes) -> bool:
    """Whether this is a key, public or secret: 32 bytes in Z85."""
    if not _KEY.fullmatch(key):
        return False
    try:
        z85.decode(key)
    except struct.error:
        return False
    return True
