"""The slot table: what lies in each slot, in 128 bytes a slot, so that a restart reads no headers.

The file starts with a block that says whose slots these are, then one entry a slot. Little-endian:

      0  sequence    u64   of the record; no two records of a slot are alike
      8  prefix key  u64
     16  tenant tag  u64
     24  end token   u32
     28  key length  u16, 0: nothing lies here
     30  zeros       2 bytes
     32  namespace   16 bytes
     48  key         64 bytes, zero-padded
    112  used        u64   logical time of the call that stored it
    120  hash        u64, xxh3-64 of bytes 0 to 120

An entry is cleared before its slot is overwritten, and written after the record is whole: a process killed at
any moment leaves no entry whose record is partial. After a power failure one may be; the record's own checks
find it.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash

from cache.keys import FORMAT, KEY_BYTES, Namespace, Page
from cache.memory import BLOCK
from cache.tiers.slots import Recalled
from cache.tiers.ssd.device import Device

ENTRY_BYTES = 128
_MAGIC = b"HPKVTABL"
_OWNER = struct.Struct("<8sHxxIQ16sQ")
_FIELDS = struct.Struct(f"<QQQIHxx16s{KEY_BYTES}sQ")
_ENTRY = np.dtype(
    [
        ("sequence", "<u8"),
        ("prefix_key", "<u8"),
        ("tenant", "<u8"),
        ("end_token", "<u4"),
        ("key_length", "<u2"),
        ("zeros", "<u2"),
        ("namespace", "V16"),
        ("key", f"V{KEY_BYTES}"),
        ("used", "<u8"),
        ("hash", "<u8"),
    ]
)
"""The same as columns, to read many."""
_HASH = struct.Struct("<Q")
_CLEAR = bytes(ENTRY_BYTES)
_HASHED = ENTRY_BYTES - _HASH.size
_CHUNK = 1 << 14


class Owner(NamedTuple):
    """Whose slots a table describes."""

    base: bytes
    """Fingerprint of the namespace's base, 16 bytes."""
    page_bytes: int
    generation: int
    version: int = FORMAT


class Row(NamedTuple):
    """One slot's entry."""

    slot: int
    sequence: int
    namespace: Namespace
    page: Page
    used: int


class Table:
    """The table file of one sub-folder. Methods block and raise OSError."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def owner(self) -> Owner | None:
        """Who wrote it; None for an empty or damaged table, which holds nothing that could be used."""
        raw = bytearray(BLOCK)
        if self._device.read(0, [memoryview(raw)]) < BLOCK:
            return None
        magic, version, _, page_bytes, base, generation = _OWNER.unpack_from(raw)
        if magic != _MAGIC or _HASH.unpack_from(raw, BLOCK - 8)[0] != xxhash.xxh3_64_intdigest(raw[:-8]):
            return None
        return Owner(base, page_bytes, generation, version)

    def start(self, owner: Owner) -> None:
        """Empty the table and write whose it is."""
        self._device.truncate(0)
        block = bytearray(BLOCK)
        _OWNER.pack_into(block, 0, _MAGIC, owner.version, 0, owner.page_bytes, owner.base, owner.generation)
        _HASH.pack_into(block, BLOCK - 8, xxhash.xxh3_64_intdigest(block[:-8]))
        self._device.write(0, [memoryview(block)])

    def cut(self, slots: int) -> None:
        """Forget all but the first `slots` slots."""
        end = min(_at(slots), self._device.size())
        self._device.truncate(end)

    def slots_of(self, tenant: int) -> list[int]:
        """Slots whose entries name a tenant, also those of pages that were evicted since."""
        chosen = (found.slots[found.tenants == tenant].tolist() for found in self.columns())
        return [slot for slots in chosen for slot in slots]

    def reserve(self, slots: int) -> None:
        """Make room on the disk for the entries of the first `slots` slots."""
        self._device.reserve(0, BLOCK + slots * ENTRY_BYTES)

    def write(self, row: Row) -> None:
        """Say that a record lies in a slot, whole."""
        page = row.page
        raw = _FIELDS.pack(
            row.sequence,
            page.prefix_key,
            page.tenant,
            page.end_token,
            len(page.key),
            row.namespace,
            page.key,
            row.used,
        )
        self._device.write(_at(row.slot), [raw + _HASH.pack(xxhash.xxh3_64_intdigest(raw))])

    def clear(self, slot: int) -> None:
        """Say that nothing lies in a slot."""
        self._device.write(_at(slot), [_CLEAR])

    def row(self, slot: int) -> Row | None:
        """A slot's entry as it is now; None when nothing lies there."""
        raw = bytearray(ENTRY_BYTES)
        self._device.read(_at(slot), [memoryview(raw)])
        return next(_rows(_decode(slot, memoryview(raw))), None)

    def rows(self) -> Iterator[Row]:
        """All entries, in slot order. A damaged one is passed over: its page is lost."""
        for found in self.columns():
            yield from _rows(found)

    def columns(self) -> Iterator[Recalled]:
        """The same as `rows`, many at a time."""
        raw = memoryview(bytearray(_CHUNK * ENTRY_BYTES))
        first = 0
        while got := self._device.read(_at(first), [raw]) // ENTRY_BYTES:
            yield _decode(first, raw[: got * ENTRY_BYTES])
            first += got

    def close(self) -> None:
        """Close the file."""
        self._device.close()


def _at(slot: int) -> int:
    return BLOCK + slot * ENTRY_BYTES


def _decode(first: int, raw: memoryview) -> Recalled:
    """The entries of a run that starts at slot `first`, without cleared and damaged ones."""
    entries = np.frombuffer(raw, _ENTRY)
    filled = np.flatnonzero(entries["key_length"])
    starts, hashes = (filled * ENTRY_BYTES).tolist(), entries["hash"][filled].tolist()
    digest = xxhash.xxh3_64_intdigest
    good = [digest(raw[at : at + _HASHED]) == hashed for at, hashed in zip(starts, hashes, strict=True)]
    whole = filled[np.array(good, np.bool_)]
    entries = entries[whole]
    spaces, keys = entries["namespace"].tobytes(), entries["key"].tobytes()
    lengths = entries["key_length"].tolist()
    return Recalled(
        first + whole,
        [Namespace(spaces[16 * at : 16 * at + 16]) for at in range(len(whole))],
        [keys[KEY_BYTES * at : KEY_BYTES * at + length] for at, length in enumerate(lengths)],
        entries["prefix_key"],
        entries["end_token"],
        entries["tenant"],
        entries["used"],
        entries["sequence"],
    )


def _rows(found: Recalled) -> Iterator[Row]:
    numbers = (found.prefix_keys, found.end_tokens, found.tenants)
    pages = map(Page, found.keys, *(column.tolist() for column in numbers))
    return map(
        Row, found.slots.tolist(), found.sequences.tolist(), found.namespaces, pages, found.used.tolist()
    )
