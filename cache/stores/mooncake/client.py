"""Mooncake's client: how to come by one, and what its numbers mean."""

import enum
import http.client
import logging
import socket
from typing import Any

from cache.errors import FolderError, SettingsError
from cache.stores.mooncake.options import Options

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 3.0
"""A master that says nothing for so long isn't there."""

_BUFFER_BYTES = 64 << 20
"""Of the client's own; only small things and whole records for `verify` pass through it."""

Client = Any
"""mooncake.store.MooncakeDistributedStore, which has no types. Its calls let other threads run, but for
`setup` and `close`."""


class Code(enum.IntEnum):
    """What the client's calls answer (Mooncake's `types.h`); a transfer that succeeds answers its bytes."""

    OK = 0
    NO_ROOM = -200
    OTHER_SIZE = -600
    """The object is larger than the buffers given."""
    NOT_READY = -703
    """Somebody is writing it, or was killed while writing."""
    NOT_FOUND = -704
    EXISTS = -705
    LEASE_EXPIRED = -707
    """The transfer took longer than the master's read lease."""
    TRANSFER = -800
    """The client that lends the memory doesn't answer, or the object is smaller than the buffers given."""
    NO_MASTER = -900


def connect(options: Options) -> Client:
    """A client that has found its master and lends its segment. Raises CacheError with what to do."""
    try:
        from mooncake.store import MooncakeDistributedStore
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{options.where}: Mooncake's client isn't installed ({error.name} is missing): "
            "pip install mooncake-transfer-engine (without CUDA: mooncake-transfer-engine-non-cuda)"
        ) from error
    except ImportError as error:
        raise SettingsError(
            f"{options.where}: Mooncake's client can't be loaded: {error}. "
            "On Debian it needs the packages libcurl4, libibverbs1 and libnuma1"
        ) from error
    _find_master(options)
    client = MooncakeDistributedStore()
    setup = {
        "local_hostname": options.host,
        "metadata_server": options.metadata,
        "global_segment_size": options.segment,
        "local_buffer_size": _BUFFER_BYTES,
        "protocol": options.protocol,
        "rdma_devices": options.devices,
        "master_server_addr": options.master,
    }
    logger.info("%s: lending %d bytes as %s", options.where, options.segment, options.host)
    code = client.setup(**setup)
    if code:
        raise FolderError(
            f"{options.where}: Mooncake's client doesn't start (code {code}; its log on stderr says why). "
            f"Check host={options.host}, protocol={options.protocol} and devices={options.devices or 'none'}"
        )
    return client


def near(client: Client) -> object:
    """How to store a page: in this client's own segment, as long as there is room."""
    from mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.preferred_segment = client.get_hostname()
    return config


def pinned() -> object:
    """How to store what mustn't be evicted."""
    from mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.with_hard_pin = True
    return config


def _find_master(options: Options) -> None:
    """Make sure that the master answers: the client itself would ask for 90 s and stop all other threads."""
    try:
        socket.create_connection(_pair(options.master), ANSWER_SECONDS).close()
    except OSError as error:
        raise FolderError(
            f"{options.where}: no Mooncake master answers ({error}): start mooncake_master there, or check "
            "the URL's host and port"
        ) from error
    try:
        ask(options, "/health")
    except (OSError, http.client.HTTPException) as error:
        raise FolderError(
            f"{options.where}: the master's HTTP server on {options.admin} doesn't say that it is well "
            f"({error}). If it has another port (mooncake_master --metrics_port), name it: ?admin=HOST:PORT"
        ) from error


def part(client: Client, options: Options) -> None:
    """End a client. One whose master hangs is left as it is: it would wait, and stop all other threads."""
    try:
        ask(options, "/health")
    except TimeoutError:
        logger.warning("%s: leaving without a word to the master, which hangs", options.where)
        return
    except (OSError, http.client.HTTPException):
        logger.warning("%s: leaving without the master, which is gone", options.where)
    client.close()


def ask(options: Options, path: str) -> bytes:
    """GET from the master's HTTP server. Raises OSError or HTTPException."""
    connection = http.client.HTTPConnection(*_pair(options.admin), timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise http.client.HTTPException(f"{path}: {answer.status} {answer.reason}")
        return body
    finally:
        connection.close()


def _pair(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
