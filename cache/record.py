"""The record: one page as every lower tier stores it.

A 4 KiB header block, then the payload. Little-endian, at these offsets:

      0  magic          8 bytes, "HPKVPAGE"
      8  format         u16
     10  key length     u16
     12  end token      u32
     16  namespace      16 bytes
     32  generation     u64, of the folder or store
     40  prefix key     u64
     48  tenant tag     u64
     56  payload bytes  u64
     64  sequence       u64, counts the writes of one writer: no two records of a slot are alike
     72  written        u64, seconds since 1970
     80  payload hash   16 bytes, xxh3-128
     96  key            64 bytes, zero-padded
    160  zeros
   4088  header hash    u64, xxh3-64 of bytes 0 to 4088
"""

import enum
import struct
from typing import NamedTuple

import xxhash

from cache.keys import FORMAT, KEY_BYTES, Namespace, Page
from cache.memory import BLOCK, Parts, total

MAGIC = b"HPKVPAGE"
HEADER_BYTES = BLOCK
_FIELDS = struct.Struct(f"<8sHHI16sQQQQQQ16s{KEY_BYTES}s")
_HASH = struct.Struct("<Q")
_HASHED = HEADER_BYTES - _HASH.size


class Verdict(enum.Enum):
    """What a check of a record found; anything but `WHOLE` is a miss."""

    WHOLE = "whole"
    NO_RECORD = "no record here"
    OTHER_FORMAT = "written by another version"
    HEADER = "header damaged"
    NAMESPACE = "of another namespace"
    GENERATION = "of an earlier generation"
    KEY = "of another page"
    LENGTH = "of another length"
    PAYLOAD = "payload damaged"


class Stamp(NamedTuple):
    """What a record says beside its page: who wrote it, and when."""

    generation: int
    sequence: int
    written: int


class Header(NamedTuple):
    """A header block, read back."""

    namespace: Namespace
    page: Page
    stamp: Stamp
    length: int
    payload_hash: bytes


def seal(header: memoryview, namespace: Namespace, page: Page, parts: Parts, stamp: Stamp) -> None:
    """Write the header of a page into a block whose bytes past the fields are zero."""
    _FIELDS.pack_into(
        header,
        0,
        MAGIC,
        FORMAT,
        len(page.key),
        page.end_token,
        namespace,
        stamp.generation,
        page.prefix_key,
        page.tenant,
        total(parts),
        stamp.sequence,
        stamp.written,
        payload_hash(parts),
        page.key,
    )
    _HASH.pack_into(header, _HASHED, xxhash.xxh3_64_intdigest(header[:_HASHED]))


def payload_hash(parts: Parts) -> bytes:
    """xxh3-128 over the parts, in order."""
    if len(parts) == 1:
        return xxhash.xxh3_128_digest(parts[0])
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.digest()


def parse(header: memoryview) -> tuple[Verdict, Header | None]:
    """Read a header block; the header is there exactly when the verdict is `WHOLE`."""
    (
        magic,
        version,
        key_length,
        end,
        namespace,
        generation,
        prefix,
        tenant,
        length,
        sequence,
        written,
        digest,
        key,
    ) = _FIELDS.unpack_from(header)
    if magic != MAGIC:
        return Verdict.NO_RECORD, None
    if _HASH.unpack_from(header, _HASHED)[0] != xxhash.xxh3_64_intdigest(header[:_HASHED]):
        return Verdict.HEADER, None
    if version != FORMAT:
        return Verdict.OTHER_FORMAT, None
    page = Page(key[:key_length], prefix, end, tenant)
    stamp = Stamp(generation, sequence, written)
    return Verdict.WHOLE, Header(Namespace(namespace), page, stamp, length, digest)


def check(header: memoryview, parts: Parts, namespace: Namespace, key: bytes, generation: int) -> Verdict:
    """Whether header and payload are the page that was asked for, whole."""
    verdict, found = parse(header)
    if found is None:
        return verdict
    if found.namespace != namespace:
        return Verdict.NAMESPACE
    if found.stamp.generation != generation:
        return Verdict.GENERATION
    if found.page.key != key:
        return Verdict.KEY
    if found.length != total(parts):
        return Verdict.LENGTH
    return Verdict.WHOLE if payload_hash(parts) == found.payload_hash else Verdict.PAYLOAD
