"""The index under measurement."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.index.workload import BLOCK, LENGTHS, PASSES, REPLICAS, filling, held_blocks, prompt
from cache.prefix import PrefixKeys, seed
from engine_adapters.events import Origin, PageEvents, Tier
from engine_adapters.vllm.events import VllmEvents
from gateway.index import Index, Store

SEED = seed()
ORIGINS = [Origin(f"replica-{i}") for i in range(REPLICAS)]
STORE_REPLICAS = 8
FILLED = 8


class Took(NamedTuple):
    """Seconds on the clock, and of this thread's CPU time."""

    wall: float
    cpu: float


class Ours:
    """An index of 64 replicas with four tiers each."""

    def __init__(self) -> None:
        self.index = Index()
        for i, origin in enumerate(ORIGINS):
            pages = dict.fromkeys(Tier, BLOCK)
            self.index.attach(origin, pages=pages, store=Store(f"store-{i // STORE_REPLICAS}", "namespace"))
        self._decoders = [VllmEvents() for _ in range(FILLED)]
        self.work()
        self.prompts = {
            length: [np.array(prompt(length, i), np.uint32) for i in range(count)]
            for length, count in LENGTHS.items()
        }

    def work(self) -> None:
        while self.index.work(0.0):
            pass

    def hold(self) -> None:
        """Give the prompts to the replicas: of what each holds a quarter in every tier, fastest first."""
        for prompts in self.prompts.values():
            for tokens in prompts:
                for i, origin in enumerate(ORIGINS):
                    self.index.push(origin, _quarters(tokens, held_blocks(len(tokens), i)))
                self.work()

    def match(self, length: int) -> list[Took]:
        """What keys and match take, for each prompt of this length in turn."""
        times = []
        for tokens in self.prompts[length] * PASSES:
            cpu, start = time.thread_time(), time.perf_counter()
            match = self.index.match(PrefixKeys(tokens, SEED))
            times.append(Took(time.perf_counter() - start, time.thread_time() - cpu))
            want = [min(held_blocks(length, i), (length - 1) // BLOCK) * BLOCK for i in range(REPLICAS)]
            if match.leading().tolist() != want:
                raise AssertionError(f"the index is wrong about a prompt of {length} tokens")
        return times

    def apply(self, payloads: Sequence[bytes], replica: int) -> Took:
        """Decode and apply these payloads, a slice at a time as on the event loop."""
        decoder = self._decoders[replica % FILLED]
        cpu, start = time.thread_time(), time.perf_counter()
        for at in range(0, len(payloads), 16):
            for payload in payloads[at : at + 16]:
                decoder.feed(payload)
            self.index.push(ORIGINS[replica % FILLED], decoder.take())
            self.work()
        return Took(time.perf_counter() - start, time.thread_time() - cpu)


def payloads(blocks: int, number: int) -> list[bytes]:
    """What an engine publishes while it computes this many blocks."""
    encode = msgspec.msgpack.Encoder().encode
    return [encode([1.0, message, 0]) for message in filling(blocks, number)]


def _quarters(tokens: np.ndarray, blocks: int) -> list[PageEvents]:
    keys = PrefixKeys(tokens, SEED).at(BLOCK)[:blocks]
    ends = (np.arange(1, blocks + 1) * BLOCK).astype(np.uint32)
    cuts = [blocks * i // 4 for i in range(5)]
    return [
        PageEvents(
            stored=np.array([True]),
            tiers=np.array([tier], np.uint8),
            counts=np.array([cuts[tier + 1] - cuts[tier]]),
            keys=keys[cuts[tier] : cuts[tier + 1]],
            ends=ends[cuts[tier] : cuts[tier + 1]],
        )
        for tier in Tier
    ]
