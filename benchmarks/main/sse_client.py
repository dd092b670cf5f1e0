"""A light client for many streams: counts events, and times the first one, without parsing them."""

import asyncio
import time
from dataclasses import dataclass, field

from benchmarks.servers import Server, ServerFailed

EVENT, END = b"data: ", b"data: [DONE]"
FILLER = "The quick brown fox jumps over the lazy dog while the river flows gently. " * 25


@dataclass
class Streams:
    """What came back of some streams."""

    events: int = 0
    first_event_s: list[float] = field(default_factory=list)


class _Connection(asyncio.Protocol):
    """One keep-alive connection that asks for `streams` streams, one after the other."""

    def __init__(self, request: bytes, streams: int, result: Streams) -> None:
        self._request = request
        self._left = streams
        self._result = result
        self._tail = b""
        self._asked_at: float | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        # An event may be cut anywhere: only whole lines count.
        data = self._tail + data
        cut = data.rfind(b"\n") + 1
        lines, self._tail = data[:cut], data[cut:]
        count = lines.count(EVENT)
        if count and self._asked_at is not None:
            self._result.first_event_s.append(time.perf_counter() - self._asked_at)
            self._asked_at = None
        self._result.events += count
        if END in lines:
            self._left -= 1
            if self._left:
                self._ask()
            else:
                self.finished.set_result(None)
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(exc or ConnectionError("a stream was cut off"))

    def _ask(self) -> None:
        self._asked_at = time.perf_counter()
        self._transport.write(self._request)


async def stream(server: Server, connections: int, streams: int, events: int) -> Streams:
    """`connections` connections, evenly out of step, each `streams` streams of `events` tokens.

    Raises ServerFailed if a connection breaks or events are missing.
    """
    result = Streams()
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(connections):
        _, connection = await loop.create_connection(
            lambda: _Connection(_request(server.port, events), streams, result), "127.0.0.1", server.port
        )
        made.append(connection)
        await asyncio.sleep(0.01 / connections)
    try:
        async with asyncio.timeout(30 + streams * events * 0.05):
            await asyncio.gather(*(connection.finished for connection in made))
    except (OSError, TimeoutError) as error:
        raise ServerFailed(f"{server.name}: {error or 'streams did not end'}") from error
    expected = connections * streams * (events + 1)
    if result.events != expected:
        raise ServerFailed(f"{server.name}: {result.events} events came, {expected} were due")
    return result


def _request(port: int, events: int) -> bytes:
    body = (
        f'{{"model":"mock","messages":[{{"role":"user","content":"{FILLER}"}}],'
        f'"max_tokens":{events},"stream":true}}'
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
