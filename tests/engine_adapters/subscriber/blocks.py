"""A sink for streams of blocks, and waiting for what comes to it."""

import asyncio
import time
from collections.abc import Callable, Sequence

from engine_adapters.events import BlockEvents, Change, Cleared, Origin, Tier
from engine_adapters.subscriber import Subscriber

A = Origin("a")


class Blocks:
    """A sink that keeps what is there, and every hash that ever came, in order."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.stored: list[int] = []
        self.cleared: list[tuple[Tier, ...]] = []
        self.backlog = 0

    def push(self, origin: Origin, changes: Sequence[Change]) -> None:
        assert origin == A
        for change in changes:
            if isinstance(change, Cleared):
                self.cleared.append(change.tiers)
                self.there.clear()
            elif isinstance(change, BlockEvents):
                self.stored += change.hashes.tolist()
                self.there.update(change.hashes.tolist())


def block(name: int) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": [name],
        "parent_block_hash": None,
        "token_ids": [name, 2],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


async def settled(follower: Subscriber) -> None:
    await until(lambda: follower.state.connected and follower.state.replays > 0)
    await asyncio.sleep(0.3)
