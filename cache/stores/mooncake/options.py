"""What a `mooncake://` URL says.

mooncake://MASTER:PORT/PREFIX?segment=4GiB&protocol=rdma&devices=mlx5_0
"""

import re
import socket
from typing import NamedTuple

from cache.errors import SettingsError
from cache.stores.address import Address

_PREFIX = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_SIZE = re.compile(r"(\d+)(?:([KMGT])iB)?")
_PORT = "50051"
_ADMIN_PORT = "9003"
"""Mooncake's own defaults."""
_OPTIONS = ("segment", "host", "protocol", "devices", "metadata", "admin")


class Options(NamedTuple):
    """How to be a client of a Mooncake master."""

    master: str
    """HOST:PORT of its RPC server."""
    prefix: str
    """All keys of the store begin with it and a slash: a master may serve others, too."""
    segment: int
    """Bytes of this process's memory that it lends to the store; they hold pages until it ends."""
    host: str
    """What other clients call this machine."""
    protocol: str
    devices: str
    """RDMA devices, with commas between."""
    metadata: str
    admin: str
    """HOST:PORT of the master's HTTP server: it tells the master's health, and lists keys."""

    @classmethod
    def parse(cls, address: Address) -> "Options":
        """Read a store's address. Raises SettingsError."""
        options = address.allow(_OPTIONS).options
        machine, port = _host_port(address.host, _PORT, str(address))
        prefix = address.path.strip("/") or "hpkv"
        if not _PREFIX.fullmatch(prefix):
            raise SettingsError(f"{address}: a prefix has letters, digits and . _ - between single slashes")
        return cls(
            master=f"{machine}:{port}",
            prefix=prefix,
            segment=_size(options.get("segment", "4GiB"), address),
            host=options.get("host") or _own_address(machine.strip("[]"), int(port)),
            protocol=_protocol(options.get("protocol", "tcp"), address),
            devices=options.get("devices", ""),
            metadata=options.get("metadata", "P2PHANDSHAKE"),
            admin=":".join(_host_port(options.get("admin") or machine, _ADMIN_PORT, str(address))),
        )

    @property
    def where(self) -> str:
        """The store, for messages."""
        return f"mooncake://{self.master}/{self.prefix}"


def _host_port(text: str, port: str, where: str) -> tuple[str, str]:
    found = re.fullmatch(r"([^:\[\]]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?", text)
    if not found or int(found[2] or port) > 65535:
        raise SettingsError(
            f"{where}: the master or admin= is no HOST:PORT: write mooncake://MASTER:{_PORT}?admin=HOST:PORT"
        )
    return found[1], found[2] or port


def _protocol(text: str, address: Address) -> str:
    if text not in ("tcp", "rdma"):
        raise SettingsError(f"{address}: protocol={text}: write tcp or rdma")
    return text


def _size(text: str, address: Address) -> int:
    found = _SIZE.fullmatch(text)
    if not found:
        raise SettingsError(
            f"{address}: segment={text} is no size: write bytes, or such as 4GiB; 0 lends none"
        )
    return int(found[1]) << 10 * (" KMGT".index(found[2]) if found[2] else 0)


def _own_address(master: str, port: int) -> str:
    """The address of this machine on the way to the master; nothing is sent."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(master, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SettingsError(
            f"mooncake: there is no way to {master}: {error.strerror}; check the name of the master"
        ) from error
