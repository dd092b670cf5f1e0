"""vLLM's KV events, decoded into changes of residency.

A payload is msgpack: `[published at, [event, ...], data-parallel rank]`, each event a map tagged by `type`,
with default values left out. What the fields mean was read in vLLM 0.32 (`distributed/kv_events.py`,
`v1/core/block_pool.py`, `v1/core/kv_cache_utils.py`):

- Hashes are 64-bit integers or, by an option of the engine, the 32 bytes whose low 64 bits those are.
- `extra_keys` has an entry for each block, and in it, untagged and in this order: the LoRA's name, if there
  is one; `(id, offset)` of each image that reaches into the block, the offset relative to the block and
  negative where it began earlier; in the first block the cache salt; the digest of prompt embeddings.
- Blocks of several KV groups carry their group. Only groups of full attention say how far a prefix reaches:
  those of sliding windows and the like hold less, and are left out. A removal doesn't repeat its group's
  kind.
- Blocks that were restored without their tokens come as placeholders, without tokens and with block size 0.
- Two blocks may hold one prefix; a removal then speaks of one of them. The prefix counts as gone: this costs
  a hit at times, never a wrong one.

Lower tiers are left to the agent's stream: vLLM's own events about them lack what a key needs.
"""

from array import array
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np

from cache.prefix import digest, seed
from engine_adapters.errors import EventsInvalid
from engine_adapters.events import (
    NO_PARENT,
    SLICE_BLOCKS,
    BlockEvents,
    BlockExtra,
    Change,
    Cleared,
    Tier,
)

GPU_MEDIUM = "GPU"
FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})

Hash = int | bytes


class _Stored(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: list[Hash]
    parent_block_hash: Annotated[int, msgspec.Meta(ge=0)] | bytes | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class _AllCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


class _Batch(msgspec.Struct, array_like=True, gc=False):
    published: float
    events: list[_Stored | _Removed | _AllCleared]


class _Head(msgspec.Struct, array_like=True, gc=False):
    published: float


class VllmEvents:
    """Decodes one replica's payloads; remembers which of its KV groups count."""

    def __init__(self) -> None:
        self._batch = msgspec.msgpack.Decoder(_Batch)
        self._head = msgspec.msgpack.Decoder(_Head)
        self._other_groups: set[int] = set()
        self._changes: list[Change] = []
        self._columns = _Columns()

    def published(self, payload: bytes) -> float:
        """When the engine published this payload, by its clock. Raises EventsInvalid."""
        try:
            return self._head.decode(payload).published
        except Exception as error:
            raise _invalid(error) from error

    def feed(self, payload: bytes) -> float:
        """Decode one payload; `take` gives its changes. Returns when it was published. Raises
        EventsInvalid."""
        try:
            batch = self._batch.decode(payload)
            for event in batch.events:
                if isinstance(event, _Stored):
                    self._stored(event)
                elif isinstance(event, _Removed):
                    self._removed(event)
                else:
                    self._flush()
                    self._changes.append(Cleared((Tier.GPU,)))
        except EventsInvalid:
            raise
        except Exception as error:  # whatever was sent, the stream has to outlive it
            raise _invalid(error) from error
        return batch.published

    def take(self) -> list[Change]:
        """All changes decoded since the last call, in order."""
        self._flush()
        changes, self._changes = self._changes, []
        return changes

    def _stored(self, event: _Stored) -> None:
        if event.medium not in (None, GPU_MEDIUM) or not self._counts(event):
            return
        size, count = event.block_size, len(event.block_hashes)
        if not size * count or len(event.token_ids) != size * count:
            return  # a placeholder: its prefix can't be known
        hashes, parent = _folded(event.block_hashes), NO_PARENT
        if event.parent_block_hash is not None:
            parent = _folded([event.parent_block_hash])[0]
        extras, salt = _extras(event) if event.extra_keys and any(event.extra_keys) else ([], None)
        start = _seed(event.lora_name, salt) if parent == NO_PARENT else 0
        if count <= SLICE_BLOCKS:
            self._add(parent, start, hashes, event.token_ids, size, extras)
            return
        for at in range(0, count, SLICE_BLOCKS):
            piece = hashes[at : at + SLICE_BLOCKS]
            tokens = event.token_ids[at * size : (at + SLICE_BLOCKS) * size]
            here = [e._replace(block=e.block - at) for e in extras if at <= e.block < at + SLICE_BLOCKS]
            self._add(hashes[at - 1] if at else parent, start, piece, tokens, size, here)

    def _add(
        self,
        parent: int,
        start: int,
        hashes: list[int],
        tokens: list[int],
        size: int,
        extras: list[BlockExtra],
    ) -> None:
        if not self._columns.fits(size, len(hashes)):
            self._flush()
        self._columns.add_stored(parent, start, hashes, tokens, size, extras)

    def _removed(self, event: _Removed) -> None:
        if event.medium not in (None, GPU_MEDIUM) or event.group_idx in self._other_groups:
            return
        hashes = _folded(event.block_hashes)
        for at in range(0, len(hashes), SLICE_BLOCKS):
            piece = hashes[at : at + SLICE_BLOCKS]
            if not self._columns.fits(0, len(piece)):
                self._flush()
            self._columns.add_removed(piece)

    def _counts(self, event: _Stored) -> bool:
        kind = event.kv_cache_spec_kind
        if kind is None or kind in FULL_ATTENTION:
            return True
        if event.group_idx is not None:
            self._other_groups.add(event.group_idx)
        return False

    def _flush(self) -> None:
        columns, self._columns = self._columns, _Columns()
        if columns.counts:
            self._changes.append(columns.events())


class _Columns:
    """A batch in the making."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._stored: list[bool] = []
        self._parents: list[int] = []
        self._seeds: list[int] = []
        self._hashes = array("Q")
        self._tokens = array("I")
        self._size = 0
        self._extras: list[BlockExtra] = []

    def fits(self, block_tokens: int, blocks: int) -> bool:
        """Whether `blocks` more of this size may join."""
        same = not block_tokens or self._size in (0, block_tokens)
        return same and len(self._hashes) + blocks <= SLICE_BLOCKS

    def add_stored(
        self,
        parent: int,
        start: int,
        hashes: list[int],
        tokens: list[int],
        size: int,
        extras: list[BlockExtra],
    ) -> None:
        """Add a run of blocks that came."""
        before = len(self._hashes)
        self._hashes.fromlist(hashes)
        try:
            self._tokens.fromlist(tokens)
        except OverflowError:
            del self._hashes[before:]
            raise
        if extras:
            self._extras += [extra._replace(block=extra.block + before) for extra in extras]
        self._size = size
        self._add(True, parent, start, len(hashes))

    def add_removed(self, hashes: list[int]) -> None:
        """Add blocks that went."""
        self._hashes.fromlist(hashes)
        self._add(False, NO_PARENT, 0, len(hashes))

    def events(self) -> BlockEvents:
        """The finished batch."""
        tokens = np.frombuffer(self._tokens, np.uint32)
        return BlockEvents(
            stored=np.array(self._stored, np.bool_),
            tiers=np.full(len(self.counts), Tier.GPU, np.uint8),
            counts=np.array(self.counts, np.int64),
            parents=np.array(self._parents, np.uint64),
            seeds=np.array(self._seeds, np.uint64),
            hashes=np.frombuffer(self._hashes, np.uint64),
            tokens=tokens.reshape(len(tokens) // max(self._size, 1), self._size),
            extras=tuple(self._extras),
        )

    def _add(self, stored: bool, parent: int, start: int, count: int) -> None:
        self._stored.append(stored)
        self.counts.append(count)
        self._parents.append(parent)
        self._seeds.append(start)


def _folded(hashes: list[Hash]) -> list[int]:
    """Hashes as integers of 64 bits, the same for both forms that vLLM gives them.

    vLLM doesn't mix the two: of a mix, either this or the column it goes to raises TypeError.
    """
    if not hashes or isinstance(hashes[0], int):
        return hashes  # type: ignore[return-value]
    return [int.from_bytes(name[-8:], "big") for name in hashes]  # type: ignore[index]


def _extras(event: _Stored) -> tuple[list[BlockExtra], str | None]:
    """What is hashed into blocks at a place of its own, and the salt."""
    extras: list[BlockExtra] = []
    salt = None
    if len(event.extra_keys or ()) > len(event.block_hashes):
        raise EventsInvalid("extra keys of more blocks than were stored")
    for block, keys in enumerate(event.extra_keys or ()):
        for key in (keys or ())[event.lora_name is not None :]:
            if isinstance(key, str):
                salt = key
            elif isinstance(key, bytes):
                extras.append(BlockExtra(block, 0, digest(key)))
            else:
                name, offset = _image(key)
                if offset >= event.block_size:
                    raise EventsInvalid("an image that begins after its block")
                if offset >= 0:  # one that began in an earlier block was mixed in there
                    extras.append(BlockExtra(block, offset, digest(name)))
    return extras, salt


def _image(key: Any) -> tuple[str, int]:
    match key:
        case [str(name), int(offset)]:
            return name, offset
    raise EventsInvalid(f"an extra key that is no LoRA, salt, digest or image: {type(key).__name__}")


def _invalid(error: Exception) -> EventsInvalid:
    """Of errors that aren't msgspec's only the kind is told: their text may quote what was sent."""
    what = str(error) if isinstance(error, msgspec.DecodeError) else type(error).__name__
    return EventsInvalid(f"no vLLM event batch that this version knows: {what}")


@lru_cache(maxsize=4096)
def _seed(lora: str | None, salt: str | None) -> int:
    return seed(lora, salt)
