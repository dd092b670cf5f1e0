"""What an engine would say of its blocks: hashes that chain, in batches of events."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from cache.prefix import PrefixKeys, digest, seed
from engine_adapters.events import BlockEvents, BlockExtra, Origin, PageEvents, Tier
from gateway.index import Index

Event = tuple[bool, Tier, int, int, list[int], list[int]]
A, B = Origin("a"), Origin("b")


class Engine:
    """Names blocks as engines do: a digest of the parent's name, the tokens, and what else was hashed in."""

    def __init__(
        self, block: int = 16, lora: str | None = None, salt: str | None = None, name: str = ""
    ) -> None:
        self.block = block
        self.seed = seed(lora, salt)
        self._root = digest(repr((name, lora, salt)))

    def hashes(self, tokens: Sequence[int], images: dict[int, str] | None = None) -> list[int]:
        parent, names = self._root, []
        for at in range(0, len(tokens) - self.block + 1, self.block):
            seen = [(o, i) for o, i in (images or {}).items() if at <= o < at + self.block]
            said = repr((parent, list(tokens[at : at + self.block]), seen))
            parent = int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "little")
            names.append(parent)
        return names

    def stored(
        self, tokens: Sequence[int], start: int = 0, end: int | None = None, tier: Tier = Tier.GPU
    ) -> Event:
        """Blocks `start` to `end` of this prompt came."""
        names = self.hashes(tokens)
        end = len(names) if end is None else end
        parent = names[start - 1] if start else 0
        return (
            True,
            tier,
            parent,
            self.seed,
            names[start:end],
            list(tokens[start * self.block : end * self.block]),
        )

    def removed(
        self, tokens: Sequence[int], start: int = 0, end: int | None = None, tier: Tier = Tier.GPU
    ) -> Event:
        """Blocks `start` to `end` of this prompt went."""
        return False, tier, 0, 0, self.hashes(tokens)[start:end], []

    def prompt(self, tokens: Sequence[int]) -> PrefixKeys:
        """This prompt as a request with this LoRA and salt brings it."""
        return PrefixKeys(tokens, self.seed)


def batch(events: Iterable[Event], block: int = 16, extras: tuple[BlockExtra, ...] = ()) -> BlockEvents:
    rows = list(events)
    tokens = [token for row in rows for token in row[5]]
    return BlockEvents(
        stored=np.array([row[0] for row in rows], np.bool_),
        tiers=np.array([row[1] for row in rows], np.uint8),
        counts=np.array([len(row[4]) for row in rows], np.int64),
        parents=np.array([row[2] for row in rows], np.uint64),
        seeds=np.array([row[3] for row in rows], np.uint64),
        hashes=np.array([name for row in rows for name in row[4]], np.uint64),
        tokens=np.array(tokens, np.uint32).reshape(len(tokens) // block, block if tokens else 0),
        extras=extras,
    )


def pages(prompt: PrefixKeys, page: int, tier: Tier, stored: bool = True) -> PageEvents:
    """An agent's event about all pages of a prompt."""
    keys = prompt.at(page)
    return PageEvents(
        stored=np.array([stored]),
        tiers=np.array([tier], np.uint8),
        counts=np.array([len(keys)]),
        keys=keys.copy(),
        ends=(np.arange(1, len(keys) + 1) * page).astype(np.uint32),
    )


def work(index: Index, now: float = 0.0) -> None:
    while index.work(now):
        pass


def held(index: Index, prompt: PrefixKeys, origin: Origin, tier: Tier | None = None) -> int:
    """Leading tokens that the index says are there."""
    match = index.match(prompt)
    row = match.tokens[match.origins.index(origin)]
    return int(row.sum() if tier is None else row[tier])
