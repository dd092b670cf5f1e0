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

from typing import Annotated, Any

import msgspec

from cache.prefix import digest
from engine_adapters.batches import seed_of
from engine_adapters.decoding import Batch, EventDecoder
from engine_adapters.errors import EventsInvalid
from engine_adapters.events import NO_PARENT, BlockExtra, Tier

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


class _Batch(Batch, array_like=True, gc=False):
    events: list[_Stored | _Removed | _AllCleared]


class VllmEvents(EventDecoder):
    """Decodes one replica's payloads; remembers which of its KV groups count."""

    engine = "vLLM"
    batch = _Batch

    def __init__(self) -> None:
        super().__init__()
        self._other_groups: set[int] = set()

    def apply(self, event: _Stored | _Removed | _AllCleared) -> None:
        """As `EventDecoder.apply`."""
        if isinstance(event, _Stored):
            self._stored(event)
        elif isinstance(event, _Removed):
            self._removed(event)
        else:
            self.batches.cleared((Tier.GPU,))

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
        start = seed_of(event.lora_name, salt) if parent == NO_PARENT else 0
        self.batches.stored(Tier.GPU, parent, start, hashes, event.token_ids, size, extras)

    def _removed(self, event: _Removed) -> None:
        if event.medium in (None, GPU_MEDIUM) and event.group_idx not in self._other_groups:
            self.batches.removed(Tier.GPU, _folded(event.block_hashes))

    def _counts(self, event: _Stored) -> bool:
        kind = event.kv_cache_spec_kind
        if kind is None or kind in FULL_ATTENTION:
            return True
        if event.group_idx is not None:
            self._other_groups.add(event.group_idx)
        return False


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
