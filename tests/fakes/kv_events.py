"""The wire of the fake engine's events: vLLM's frames on a PUB socket, and its replay on a ROUTER."""

import threading
import time
from collections import deque

import msgspec
import zmq

from tests.fakes.prefix_cache import Event

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class KvEventPublisher:
    """Publishes batches `[ts, [events], rank]` under a topic and an 8-byte big-endian sequence number."""

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str,
        topic: str = "kv",
        rank: int = 0,
        buffer_steps: int = 10_000,
    ) -> None:
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.topic = topic
        self.rank = rank
        self.sequence = 0
        self.sent = -1
        """The last batch that went out on the stream, not withheld."""
        self.muted = False
        self._withheld = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind(endpoint)
        router = self._context.socket(zmq.ROUTER)
        router.bind(replay_endpoint)
        self._thread = threading.Thread(target=self._serve_replay, args=(router,), name="fake-replay")
        self._thread.start()

    def publish(self, events: list[Event]) -> None:
        """Send one batch. A muted publisher loses it without a trace."""
        self.publish_payload(msgspec.msgpack.encode([time.time(), events, self.rank]))

    def publish_payload(self, payload: bytes) -> None:
        """Send one batch as it is encoded already."""
        if self.muted:
            return
        with self._lock:
            self._buffer.append((self.sequence, payload))
            if self._withheld:
                self._withheld -= 1
            else:
                self._pub.send_multipart([self.topic.encode(), self.sequence.to_bytes(8, "big"), payload])
                self.sent = self.sequence
            self.sequence += 1

    def publish_raw(self, *frames: bytes) -> None:
        """Send these frames as they are: what no engine should send, a test may."""
        with self._lock:
            self._pub.send_multipart(frames)

    def withhold(self, batches: int) -> None:
        """Leave the next `batches` out of the stream: a gap that a replay can fill."""
        self._withheld = batches

    def forget(self) -> None:
        """Empty the replay buffer: gaps so far can no longer be filled."""
        with self._lock:
            self._buffer.clear()

    def restart(self) -> None:
        """Begin again at sequence 0 with nothing to replay, as a restarted engine does."""
        with self._lock:
            self.sequence = 0
            self.sent = -1
            self._buffer.clear()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._pub.close(linger=0)
        self._context.term()

    def _serve_replay(self, router: zmq.Socket[bytes]) -> None:
        while not self._closed.is_set():
            if not router.poll(50):
                continue
            client, empty, first = router.recv_multipart()
            with self._lock:
                batches = list(self._buffer)
            for sequence, payload in batches:
                if sequence >= int.from_bytes(first, "big"):
                    router.send_multipart(
                        [client, empty, self.topic.encode(), sequence.to_bytes(8, "big"), payload]
                    )
            router.send_multipart([client, empty, b"", END_OF_REPLAY, b""])
        router.close(linger=0)
