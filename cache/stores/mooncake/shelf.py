"""A store's things under its prefix, for its root and the commands.

PREFIX/hpkv.json                          what this is, its id and its generation; pinned
PREFIX/GENERATION/NAMESPACE/FAN/KEY       a record
"""

import http.client
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from cache.errors import FolderError
from cache.memory import allocate
from cache.stores.mooncake.buffers import Buffers
from cache.stores.mooncake.client import Client, Code, ask, pinned
from cache.stores.mooncake.options import Options
from cache.stores.root import NAME, Root
from cache.stores.shelf import NEW, Blob, Entry, Missing, Shelf

KIND = "hpkv-mooncake"

_ASKED_AT_ONCE = 1000
_PATIENCE_SECONDS = 1.0
"""How long to wait for a root that somebody else is about to write."""


class MooncakeShelf(Shelf):
    """Keys of one prefix. It keeps no times: what it says of them is that it doesn't know."""

    def __init__(self, client: Client, options: Options) -> None:
        self.client = client
        self.options = options
        self.where = options.where
        self._buffers = Buffers(client, large=1 << 62)

    def close(self) -> None:
        """Ask the client nothing any more: one that has ended takes the process with it."""
        self.client = _Ended(self.where)

    def key(self, name: str) -> str:
        """What a thing is called in Mooncake."""
        return f"{self.options.prefix}/{name}"

    def entries(self) -> Iterator[Entry]:
        """By the master's HTTP server, all keys in one answer. Raises FolderError if it can't be reached."""
        try:
            lines = ask(self.options, "/get_all_keys").decode().splitlines()
        except (OSError, http.client.HTTPException) as error:
            raise FolderError(
                f"{self.where} can't be listed: the master's HTTP server on {self.options.admin} doesn't "
                f"answer ({error}). Start mooncake_master with --metrics_port, and name it: ?admin=HOST:PORT"
            ) from error
        keys = [line for line in lines if line.startswith(self.key(""))]
        for start in range(0, len(keys), _ASKED_AT_ONCE):
            replicas = self.client.batch_get_replica_desc(keys[start : start + _ASKED_AT_ONCE])
            for key, places in replicas.items():
                yield Entry(key.removeprefix(self.key("")), self._size(key, places[0]), math.nan)

    def get(self, name: str, size: int | None = None) -> Blob:  # noqa: D102
        key = self.key(name)
        if not self.has(name):
            raise Missing(name)
        data = bytes(self.client.get(key)) if size is None else self._front(key, size)
        if not data:
            raise Missing(name)
        return Blob(data, math.nan, xxhash.xxh3_128_hexdigest(data))

    def put(self, name: str, data: bytes, over: str) -> bool:
        """Making a thing is atomic. Replacing isn't: of two that replace the same version, the later wins."""
        if over == NEW:
            self._answer(self.client.put(self.key(name), data, pinned()))
        elif self.get(name).version == over:
            self._answer(self.client.upsert(self.key(name), data, pinned()))
        return self._settled(name).data == data

    def remove(self, names: Sequence[str]) -> list[bool]:
        """Also from under readers: their checks find out."""
        codes = self.client.batch_remove([self.key(name) for name in names], True)
        return [self._answer(code) == Code.OK for code in codes]

    def remove_generations(self, pattern: str) -> int:
        """Remove all records of the generations that match a regular expression; returns how many."""
        prefix = self.options.prefix.replace(".", "[.]")
        return self._answer(self.client.remove_by_regex(f"^{prefix}/{pattern}/[0-9a-f]{{32}}/.*", True))

    def now(self) -> float:  # noqa: D102
        return time.time()

    def found(self, root: Root) -> None:
        """Write the root if there is none: the store is new, or whoever lent its memory is gone."""
        if not self.has(NAME):
            self.put(NAME, root.dump(), NEW)

    def has(self, name: str) -> bool:
        """Whether a thing is there."""
        return bool(self._answer(self.client.is_exist(self.key(name))))

    def _size(self, key: str, place: Any) -> int:
        if place.is_memory_replica():
            return int(place.get_memory_descriptor().buffer_descriptor.size)
        return max(int(self.client.get_size(key)), 0)

    def _settled(self, name: str) -> Blob:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                return self.get(name)
            except Missing:
                time.sleep(0.02)
        raise FolderError(
            f"{self.where}: {name} can't be read back. Does any client lend memory (segment=4GiB)? "
            "If another one was killed while it wrote this, try again in a minute"
        )

    def _front(self, key: str, size: int) -> bytes:
        memory = allocate(size)
        with self._buffers.registered([[memory]]) as ((address,),):
            (((code,),),) = self.client.get_into_ranges([address], [[key]], [[[0]]], [[[0]]], [[[size]]])
        return bytes(memory) if code == size else b""

    def _answer(self, code: int) -> int:
        if code == Code.NO_MASTER:
            raise FolderError(f"{self.where}: the Mooncake master doesn't answer")
        if code == Code.NO_ROOM:
            raise FolderError(f"{self.where} has no room: let clients lend more memory (segment=4GiB)")
        return code


class _Ended:
    """In a client's place."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Any:
        raise FolderError(f"{self._where} is closed")
