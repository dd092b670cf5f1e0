"""The `mooncake` store: a record is one object, its header and payload gathered from where they lie."""

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from cache.errors import SettingsError
from cache.keys import Namespace
from cache.memory import Parts
from cache.record import HEADER_BYTES, Stamp, Verdict, check, seal
from cache.stores.base import Settings
from cache.stores.guard import FAULTS, Call, Unavailable
from cache.stores.mooncake.buffers import Buffers, Headers
from cache.stores.mooncake.client import ANSWER_SECONDS, Client, Code, near, part
from cache.stores.mooncake.maintenance import MooncakeMaintenance
from cache.stores.mooncake.options import Options
from cache.stores.mooncake.shelf import KIND, MooncakeShelf
from cache.stores.names import name_of
from cache.stores.parallel import Hands
from cache.stores.presence import Hint
from cache.stores.root import NAME, Root
from cache.stores.store import RecordStore, Saved
from cache.stores.upkeep import Upkeep
from cache.tiers.base import Outcome, Read, Write

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOKERS = 2
_CALLS = 4
"""Batches read, and written, at once: one moves while others are checked; more get in each other's way."""
_BATCH_BYTES = 16 << 20
"""A batch must be read within the master's lease (10 s, older masters 5 s), also over a slow network."""
_BATCH_PAGES = 64
_LARGE_PAGES = 16
"""A region of so many pages is somebody's pool."""


class Mooncake(RecordStore):
    """Pages in the segments that this and other clients lend to one master.

    The master evicts what was used longest ago, but nothing that was looked up or read within its lease. It
    forgets everything when it restarts, and a client's segment when that ends; then pages are stored again.
    """

    def __init__(self, client: Client, options: Options, settings: Settings) -> None:
        """Raises CacheError. The client is the store's from now on."""
        if settings.limits.cap or settings.limits.age:
            raise SettingsError(
                f"{options.where}: Mooncake evicts by itself when the segments that clients lend are full: "
                "leave out cap and age, and size the segments (segment=…)"
            )
        self._client = client
        shelf = MooncakeShelf(self._client, options)
        shelf.found(Root.new(KIND))
        upkeep = _NoUpkeep(shelf, settings.limits, lambda: 0)
        maintenance = MooncakeMaintenance(shelf, KIND)
        super().__init__(shelf, settings, KIND, settings.io_seconds, _CALLS, maintenance, upkeep)
        self._mooncake = shelf
        self._root_missed = False
        self._near = near(self._client)
        self.batch = min(max(_BATCH_BYTES // self.record_bytes(), 1), _BATCH_PAGES)
        self._buffers = Buffers(self._client, _LARGE_PAGES * settings.page_bytes)
        self._read_headers = Headers(self._buffers, _CALLS, self.batch)
        self._write_headers = Headers(self._buffers, _CALLS, self.batch)
        self._hands = Hands("hpkv-mooncake-look", _LOOKERS)
        self._sequence = itertools.count(1)

    def look(  # noqa: D102
        self, generation: int, namespace: Namespace, keys: Sequence[bytes], deadline: float
    ) -> Sequence[Hint]:
        names = self._names(generation, namespace, keys)
        hints = [Hint.UNKNOWN] * len(keys)

        def ask() -> None:
            try:
                with self.guard.call(Call.LOOK):
                    codes = self._client.batch_is_exist(names)
            except Unavailable:
                return
            if min(codes) < 0:
                self._failed("looking into", min(codes))
                return
            self.guard.fine()
            hints[:] = [Hint.THERE if code else Hint.GONE for code in codes]

        self._hands.run([ask], deadline)
        return tuple(hints)

    def fetch(self, generation: int, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:  # noqa: D102
        outcomes: list[Outcome] = []
        for batch in _batches(reads, self.batch):
            try:
                with self.guard.call(Call.READ):
                    outcomes += self._fetch(generation, namespace, batch)
            except Unavailable:
                outcomes += [Outcome.FAILED] * len(batch)
        return outcomes

    def save(self, generation: int, namespace: Namespace, writes: Sequence[Write]) -> list[Saved]:  # noqa: D102
        saved: list[Saved] = []
        for batch in _batches(writes, self.batch):
            try:
                with self.guard.call(Call.WRITE):
                    saved += self._save(generation, namespace, batch)
            except Unavailable:
                saved += [Saved(Outcome.DROPPED, False)] * len(batch)
        return saved

    def record_bytes(self) -> int:  # noqa: D102
        return HEADER_BYTES + self.settings.page_bytes

    def close(self) -> None:  # noqa: D102
        self._hands.close()
        self._mooncake.close()
        if not self.guard.close(ANSWER_SECONDS):
            logger.warning("%s: a call hangs; its client is left as it is", self.shelf.where)
            return
        self._buffers.close()
        part(self._client, self._mooncake.options)

    def _fetch(self, generation: int, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:
        names = self._names(generation, namespace, [read.key for read in reads])
        with self._read_headers.some(len(reads)) as headers:
            records = [[header, *read.into] for header, read in zip(headers, reads, strict=True)]
            codes = self._get(names, records)
            for at, code in enumerate(codes):
                if code == Code.LEASE_EXPIRED and len(codes) > 1:  # alone it is faster
                    (codes[at],) = self._get(names[at : at + 1], records[at : at + 1])
            return [
                self._received(name, code, header, read, generation, namespace)
                for name, code, header, read in zip(names, codes, headers, reads, strict=True)
            ]

    def _get(self, names: Sequence[str], records: Sequence[Parts]) -> list[int]:
        sizes = [[part.nbytes for part in record] for record in records]
        with self._buffers.registered(records) as addresses:
            return list(self._client.batch_get_into_multi_buffers(names, addresses, sizes))

    def _received(
        self, name: str, code: int, header: memoryview, read: Read, generation: int, namespace: Namespace
    ) -> Outcome:
        """What has become of a read."""
        if code == self.record_bytes():
            self.guard.fine()
            if check(header, read.into, namespace, read.key, generation) is Verdict.WHOLE:
                return Outcome.DONE
        elif code in (Code.NOT_FOUND, Code.NOT_READY):
            return Outcome.MISSING
        elif code in (Code.NO_MASTER, Code.LEASE_EXPIRED) or not self._other_size(name):
            return self._failed("reading from", code)
        self._client.remove(name, True)
        return Outcome.DAMAGED

    def _other_size(self, name: str) -> bool:
        """Why a transfer has failed: by the record's size, or for want of whoever lends its memory."""
        size = int(self._client.get_size(name))
        return size >= 0 and size != self.record_bytes()

    def _save(self, generation: int, namespace: Namespace, writes: Sequence[Write]) -> list[Saved]:
        names = self._names(generation, namespace, [write.page.key for write in writes])
        there = self._client.batch_is_exist(names)
        if min(there) == Code.NO_MASTER:
            return [self._saved(Code.NO_MASTER)] * len(names)
        codes = dict.fromkeys(range(len(names)), int(Code.EXISTS))
        new = [at for at, code in enumerate(there) if code != 1]
        if new:
            put = self._put(generation, namespace, [names[at] for at in new], [writes[at] for at in new])
            codes.update(zip(new, put, strict=True))
        return [self._saved(code) for code in codes.values()]

    def _put(
        self, generation: int, namespace: Namespace, names: Sequence[str], writes: Sequence[Write]
    ) -> list[int]:
        with self._write_headers.some(len(writes)) as headers:
            for header, write in zip(headers, writes, strict=True):
                stamp = Stamp(generation, next(self._sequence), int(time.time()))
                seal(header, namespace, write.page, write.parts, stamp)
            records = [[header, *write.parts] for header, write in zip(headers, writes, strict=True)]
            sizes = [[part.nbytes for part in record] for record in records]
            with self._buffers.registered(records) as addresses:
                return list(self._client.batch_put_from_multi_buffers(names, addresses, sizes, self._near))

    def _saved(self, code: int) -> Saved:
        if code in (Code.OK, Code.EXISTS):
            self.guard.fine()
            return Saved(Outcome.DONE, code == Code.OK)
        if code == Code.NO_ROOM:
            return Saved(Outcome.FULL, False)
        return Saved(self._failed("writing to", code), False)

    def _failed(self, doing: str, code: int) -> Outcome:
        """Without its master the store is out of reach; without one of many clients it isn't."""
        logger.warning("%s %s failed: code %d", doing, self.shelf.where, code)
        if code == Code.NO_MASTER:
            self.guard.fault(FAULTS)
        return Outcome.FAILED

    def _follow(self) -> None:
        """Also: where the root has gone, with the master's memory or that of another client, write it again.

        Twice in a row, since a root that is being replaced is gone for a moment.
        """
        if self._mooncake.has(NAME):
            self._root_missed = False
        elif self._root_missed:
            self._mooncake.found(self._root)
            self._presence.forget()
            self._written.forget()
            with self._lock:
                self._own_pages = self._own_bytes = 0
        else:
            self._root_missed = True
            return
        super()._follow()

    def _names(self, generation: int, namespace: Namespace, keys: Sequence[bytes]) -> list[str]:
        return [self._mooncake.key(name_of(generation, namespace, key)) for key in keys]


class _NoUpkeep(Upkeep):
    def run(self) -> None:
        """Mooncake evicts by itself."""


def _batches(requests: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (requests[start : start + size] for start in range(0, len(requests), size))
