"""SGLang's KV events, decoded into changes of residency.

The envelope is in `engine_adapters/decoding.py`. What the events mean was read in SGLang 0.5.23
(`disaggregation/kv_events.py`, `mem_cache/events.py`), in the format "dynamo":

- Hashes are signed 64-bit integers. They are chained and depend on the LoRA's load, the salt and the
  request's `extra_key`; of these, the LoRA's name and the salt are told.
- `medium` is GPU, or CPU_PINNED for SGLang's own host tier. Lower tiers are left to the agent's stream.
- With speculative decoding by EAGLE, a page's tokens are pairs, each token with the one after it.
- A reset clears the tree, and with it both tiers.

In the format "default" a prompt with an `extra_key` has the hashes of one without.
"""

from typing import Final

import msgspec

from cache.prefix import MASK
from engine_adapters.batches import seed_of
from engine_adapters.decoding import Batch, EventDecoder
from engine_adapters.events import NO_PARENT, Tier

TIERS: Final = {None: Tier.GPU, "GPU": Tier.GPU, "CPU_PINNED": Tier.HOST}
"""Where a `medium` is; others aren't told of here."""


class _Stored(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int | tuple[int, int]]
    block_size: int
    medium: str | None = None
    cache_salt: str | None = None
    lora_name: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[int]
    medium: str | None = None


class _AllCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


class _Batch(Batch, array_like=True, gc=False):
    events: list[_Stored | _Removed | _AllCleared]


class SglangEvents(EventDecoder):
    """Decodes one replica's payloads."""

    engine = "SGLang"
    batch = _Batch

    def apply(self, event: _Stored | _Removed | _AllCleared) -> None:
        """As `EventDecoder.apply`."""
        if isinstance(event, _Stored):
            self._stored(event)
        elif isinstance(event, _Removed):
            if (tier := TIERS.get(event.medium)) is not None:
                self.batches.removed(tier, _unsigned(event.block_hashes))
        else:
            self.batches.cleared((Tier.GPU, Tier.HOST))

    def _stored(self, event: _Stored) -> None:
        tier = TIERS.get(event.medium)
        size, count = event.block_size, len(event.block_hashes)
        if tier is None or not size * count or len(event.token_ids) != size * count:
            return
        parent, start = NO_PARENT, 0
        if event.parent_block_hash is None:
            start = seed_of(event.lora_name, event.cache_salt)
        else:
            parent = event.parent_block_hash & MASK
        tokens = _tokens(event.token_ids)
        self.batches.stored(tier, parent, start, _unsigned(event.block_hashes), tokens, size)


def _unsigned(hashes: list[int]) -> list[int]:
    return [name & MASK for name in hashes]


def _tokens(ids: list[int | tuple[int, int]]) -> list[int]:
    """Each position's own token: the first of a pair. Pairs come alone or not at all."""
    if isinstance(ids[0], int):
        return ids  # type: ignore[return-value]
    return [pair[0] for pair in ids]  # type: ignore[index]
