"""Prompts, and the events of engines that hold them. Standard library and msgspec-free where the peer shares
it."""

import random
from collections.abc import Iterator

BLOCK = 16
EVENT_BLOCKS = 8
REPLICAS = 64
WHOLE = 8
VOCABULARY = 50_000
CHAINS = 8
LENGTHS = {12_000: 40, 131_072: 4}
"""Prompt lengths, and how many prompts of each take turns: more than a core's own cache holds of the
index."""
PASSES = 5
"""How often all prompts of a length are matched in one turn: what the other contender left in the caches
wears off."""


def prompt(length: int, number: int) -> list[int]:
    """The same in every process."""
    return random.Random(length * 1000 + number).choices(range(VOCABULARY), k=length)


def names(length: int, number: int) -> list[int]:
    """What the engines call this prompt's blocks."""
    source = random.Random(-length * 1000 - number)
    return [source.getrandbits(64) for _ in range(length // BLOCK)]


def held_blocks(length: int, replica: int) -> int:
    """Leading blocks of a prompt that this replica holds."""
    return length // BLOCK // (1 if replica < WHOLE else 2)


def filling(blocks: int, seed: int) -> Iterator[list[dict[str, object]]]:
    """Messages of an engine that computes long prompts, several at once: an event of eight blocks for each.

    Enough for `blocks` blocks, all new; ids up to the vocabulary, as msgpack would carry them.
    """
    source = random.Random(seed)
    parents: list[int | None] = [None] * CHAINS
    lengths = [0] * CHAINS
    for _ in range(blocks // (EVENT_BLOCKS * CHAINS)):
        message = []
        for chain in range(CHAINS):
            hashes = [source.getrandbits(64) for _ in range(EVENT_BLOCKS)]
            message.append(
                stored(hashes, parents[chain], source.choices(range(VOCABULARY), k=EVENT_BLOCKS * BLOCK))
            )
            lengths[chain] += 1
            parents[chain] = hashes[-1] if lengths[chain] % 94 else None
        yield message


def stored(hashes: list[int], parent: int | None, tokens: list[int]) -> dict[str, object]:
    """A BlockStored event as vLLM 0.32 sends it."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
