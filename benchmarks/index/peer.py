"""Dynamo's index, in its own environment: reads commands, answers a line of JSON for each.

hold                 give the prompts to 64 workers
match LENGTH         seconds of hash and match for each prompt
apply BLOCKS NUMBER  seconds to apply this many blocks, in events of eight
"""

import json
import random
import sys
import time
from pathlib import Path

from dynamo.llm import RadixTree, compute_block_hash_for_seq

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.index.workload import (
    BLOCK,
    EVENT_BLOCKS,
    LENGTHS,
    PASSES,
    REPLICAS,
    held_blocks,
    names,
    prompt,
)


class Dynamo:
    """A radix tree and the prompts that are looked up in it."""

    def __init__(self) -> None:
        self._tree = RadixTree()
        self._events = 0
        self._prompts = {n: [prompt(n, i) for i in range(count)] for n, count in LENGTHS.items()}

    def hold(self) -> int:
        for length, prompts in self._prompts.items():
            for number, tokens in enumerate(prompts):
                hashes, blocks = compute_block_hash_for_seq(tokens, BLOCK), names(length, number)
                for worker in range(REPLICAS):
                    n = held_blocks(length, worker)
                    self._tree.apply_event(worker, self._stored(blocks[:n], hashes[:n], None))
                self._settle()
        return self._events

    def match(self, length: int) -> list[float]:
        times = []
        for tokens in self._prompts[length] * PASSES:
            start = time.perf_counter()
            found = self._tree.find_matches(compute_block_hash_for_seq(tokens, BLOCK))
            times.append(time.perf_counter() - start)
            if len(found.scores) != REPLICAS:
                raise AssertionError("Dynamo's tree doesn't hold the prompt")
        return times

    def apply(self, blocks: int, number: int) -> float:
        source = random.Random(number)
        events, parent = [], None
        for i in range(blocks // EVENT_BLOCKS):
            hashes = [source.getrandbits(64) for _ in range(EVENT_BLOCKS)]
            tokens = [source.getrandbits(64) for _ in range(EVENT_BLOCKS)]
            events.append(self._stored(hashes, tokens, parent if i % 94 else None))
            parent = hashes[-1]
        start = time.perf_counter()
        for event in events:
            self._tree.apply_event(number % 8, event)
        self._settle()
        return time.perf_counter() - start

    def _settle(self) -> None:
        self._tree.find_matches([1])

    def _stored(self, blocks: list[int], tokens: list[int], parent: int | None) -> bytes:
        self._events += 1
        pairs = [{"block_hash": b, "tokens_hash": t} for b, t in zip(blocks, tokens, strict=True)]
        event = {
            "event_id": self._events,
            "dp_rank": 0,
            "data": {"stored": {"parent_hash": parent, "blocks": pairs}},
        }
        return json.dumps(event).encode()


def main() -> None:
    dynamo = Dynamo()
    for line in sys.stdin:
        command, *numbers = line.split()
        print(json.dumps(getattr(dynamo, command)(*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
