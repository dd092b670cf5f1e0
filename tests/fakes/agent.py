"""An engine's agent without an engine: the real wire on real sockets, over pages that a test lays down."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import zmq

from cache.prefix import PrefixKeys
from engine_adapters import wire
from tests.fakes.kv_events import KvEventPublisher

TIERS: tuple[wire.TierName, ...] = ("host", "ssd", "shared")
PIECE = 4
"""Pages in a piece of its snapshots."""


class FakeAgent:
    """Answers `hello`, `stats` and `snapshot`, and publishes what `store` and `remove` do.

    `identity` and `statistics` are what it says; `behave` may change an answer, or keep it back by None.
    """

    def __init__(self, folder: Path, page_tokens: int = 16, epoch: int = 1) -> None:
        self.address = f"ipc://{folder}/agent"
        tiers = {tier: wire.TierInfo(capacity_bytes=1 << 30, tokens_per_s=1e6) for tier in TIERS}
        self.identity = wire.Identity(
            engine="vllm",
            engine_version="0",
            model="fake",
            namespace="aa",
            store_id="store",
            page_tokens=page_tokens,
            tiers=tiers,
            threshold=16,
            epoch=epoch,
        )
        self.statistics = wire.Statistics(tiers=tiers, prefill_tokens_per_s=1e4, threshold=16)
        self.behave: Callable[[wire.Call, list[wire.Answer]], list[wire.Answer] | None] = _answer
        self.pages: dict[wire.TierName, dict[int, int]] = {tier: {} for tier in TIERS}
        self.calls: list[wire.Call] = []
        self.version = wire.VERSION
        self._lock = threading.Lock()

    def start(self) -> None:
        """Bind all its sockets."""
        sockets = wire.endpoints(self.address)
        self.publisher = KvEventPublisher(sockets.events, sockets.replay, topic="tiers")
        self._ended = threading.Event()
        self._context = zmq.Context()
        router = self._context.socket(zmq.ROUTER)
        router.bind(sockets.control)
        self._thread = threading.Thread(target=self._serve, args=(router,), name="fake-agent")
        self._thread.start()

    def stop(self) -> None:
        """Leave its sockets, as when its engine ends."""
        self._ended.set()
        self._thread.join()
        self._context.term()
        self.publisher.close()

    def restart(self) -> None:
        """Its engine dies and comes back: another epoch, an empty host tier, messages from 0."""
        self.stop()
        self.pages["host"].clear()
        self.identity = msgspec.structs.replace(self.identity, epoch=self.identity.epoch + 1)
        self.start()

    def store(self, tier: wire.TierName, prompt: PrefixKeys, start: int = 0, stop: int | None = None) -> None:
        """Pages `start` to `stop` of a prompt came."""
        self._change(True, tier, *self._of(prompt, start, stop))

    def remove(
        self, tier: wire.TierName, prompt: PrefixKeys, start: int = 0, stop: int | None = None
    ) -> None:
        """They went."""
        self._change(False, tier, *self._of(prompt, start, stop))

    def _of(self, prompt: PrefixKeys, start: int, stop: int | None) -> tuple[list[int], list[int]]:
        size = self.identity.page_tokens
        keys = prompt.at(size)[start:stop].tolist()
        return keys, [(start + number + 1) * size for number in range(len(keys))]

    def _change(self, stored: bool, tier: wire.TierName, keys: list[int], ends: list[int]) -> None:
        with self._lock:
            for key, end in zip(keys, ends, strict=True):
                if stored:
                    self.pages[tier][key] = end
                else:
                    self.pages[tier].pop(key, None)
            change = wire.TierChange(stored, tier, *_columns(keys, ends))
            batch = wire.TierBatch(time.time(), self.identity.epoch, [change])
            self.publisher.publish_payload(msgspec.msgpack.encode(batch))

    def _serve(self, router: "zmq.Socket[bytes]") -> None:
        while not self._ended.is_set():
            if not router.poll(20):
                continue
            client, frame = router.recv_multipart()
            envelope = msgspec.msgpack.decode(frame, type=wire.Envelope)
            call: wire.Call = msgspec.msgpack.decode(envelope.body, type=wire.Call)
            self.calls.append(call)
            for answer in self.behave(call, self._answers(call)) or []:
                body = msgspec.Raw(msgspec.msgpack.encode(answer))
                said = wire.Envelope(self.version, envelope.number, body)
                router.send_multipart([client, msgspec.msgpack.encode(said)])
        router.close(linger=0)

    def _answers(self, call: wire.Call) -> list[wire.Answer]:
        if isinstance(call, wire.Hello):
            return [self.identity]
        if isinstance(call, wire.Stats):
            return [self.statistics]
        if isinstance(call, wire.Snapshot):
            return self._listings(call.tier)
        return [wire.Refused(code="unsupported", message="a fake")]

    def _listings(self, tier: wire.TierName) -> list[wire.Answer]:
        with self._lock:
            pages, sequence = list(self.pages[tier].items()), self.publisher.sequence - 1
        pieces = [pages[at : at + PIECE] for at in range(0, len(pages), PIECE)] or [[]]
        listings: list[wire.Answer] = []
        for number, piece in enumerate(pieces, 1):
            keys, ends = _columns([key for key, _ in piece], [end for _, end in piece])
            last = number == len(pieces)
            listings.append(wire.Listing(tier=tier, sequence=sequence, keys=keys, ends=ends, last=last))
        return listings


def _columns(keys: list[int], ends: list[int]) -> tuple[bytes, bytes]:
    return np.array(keys, "<u8").tobytes(), np.array(ends, "<u4").tobytes()


def _answer(call: wire.Call, answers: list[wire.Answer]) -> list[wire.Answer]:
    return answers
