"""The fake engine's prefix cache: chained block hashes, a block budget, LRU, and vLLM's events about them."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

Event = dict[str, Any]


class Block(NamedTuple):
    """One full block of a prompt: its engine hash, and what went into it."""

    hash: int
    parent: int | None
    token_ids: list[int]
    extra_keys: tuple[str, ...] | None


class PrefixCache:
    """Full blocks by hash, least recently used first."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.queries = 0
        self.hits = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, token_ids: Sequence[int], salt: str = "", lora: str = "") -> int:
        """Leading tokens that are cached; the last token of a prompt is always computed, as in vLLM."""
        hits = []
        for block in self._chain(token_ids[:-1], salt, lora):
            if block.hash not in self._blocks:
                break
            hits.append(block.hash)
        self._touch(hits)
        self.queries += len(token_ids)
        self.hits += len(hits) * self.block_size
        return len(hits) * self.block_size

    def store(self, token_ids: Sequence[int], salt: str = "", lora: str = "") -> None:
        """Add the full blocks of `token_ids`, an event for each run of new ones; evict down to the budget."""
        run: list[Block] = []
        chain = list(self._chain(token_ids, salt, lora))
        for block in chain:
            if block.hash not in self._blocks:
                run.append(block)
            elif run:
                self._stored(run, lora)
                run = []
        if run:
            self._stored(run, lora)
        self._touch([block.hash for block in chain])
        while len(self._blocks) > self.num_blocks:
            evicted, _ = self._blocks.popitem(last=False)
            self._events.append(
                {"type": "BlockRemoved", "block_hashes": [evicted], "medium": "GPU", "group_idx": 0}
            )

    def reset(self) -> None:
        """Forget everything. The event waits for the next batch, as in vLLM."""
        self._blocks.clear()
        self._events.append({"type": "AllBlocksCleared"})

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _touch(self, hashes: list[int]) -> None:
        """Mark as used now; a block stays longer than those that extend it."""
        for block_hash in reversed(hashes):
            self._blocks[block_hash] = None
            self._blocks.move_to_end(block_hash)

    def _stored(self, run: list[Block], lora: str) -> None:
        event: Event = {
            "type": "BlockStored",
            "block_hashes": [block.hash for block in run],
            "parent_block_hash": run[0].parent,
            "token_ids": [token for block in run for token in block.token_ids],
            "block_size": self.block_size,
            "lora_id": 1 if lora else None,
            "medium": "GPU",
            "lora_name": lora or None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        if any(block.extra_keys for block in run):
            event["extra_keys"] = [block.extra_keys for block in run]
        self._events.append(event)

    def _chain(self, token_ids: Sequence[int], salt: str, lora: str) -> Iterator[Block]:
        """LoRA is an extra key of every block, the salt of the first alone."""
        parent = None
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            ids = list(token_ids[start : start + self.block_size])
            extra = tuple(key for key in (lora, salt if start == 0 else "") if key) or None
            digest = hashlib.sha256(repr((parent, ids, extra)).encode()).digest()
            block = Block(int.from_bytes(digest[-8:], "big"), parent, ids, extra)
            yield block
            parent = block.hash
