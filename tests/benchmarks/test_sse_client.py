import asyncio
from collections.abc import Iterator

import pytest

from benchmarks.main.rig import build_mock
from benchmarks.main.sse_client import stream
from benchmarks.servers import Server, ServerFailed, free_port


@pytest.fixture(scope="module")
def backend() -> Iterator[Server]:
    port = free_port()
    with Server("test-mock", [str(build_mock()), str(port)], port) as server:
        yield server


async def test_every_event_of_every_stream_is_counted(backend: Server) -> None:
    result = await stream(backend, connections=4, streams=2, events=5)
    assert result.events == 4 * 2 * (5 + 1)
    assert len(result.first_event_s) == 8
    assert all(0.009 <= seconds < 0.5 for seconds in result.first_event_s)


async def test_an_event_cut_anywhere_counts_once(backend: Server) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes the backend's bytes on one at a time."""
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", backend.port)
        upstream.write(await reader.read(65536))
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += await upstream_reader.readexactly(1)
            writer.write(answer[-1:])
            await writer.drain()
        for end in (upstream, writer):
            end.close()
            await end.wait_closed()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as relaying:
        through = Server("relay", [], relaying.sockets[0].getsockname()[1])
        assert (await stream(through, connections=1, streams=1, events=3)).events == 4


async def test_a_stream_that_is_cut_off_is_told() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as cutting:
        through = Server("cutting", [], cutting.sockets[0].getsockname()[1])
        with pytest.raises(ServerFailed, match="cutting"):
            await stream(through, connections=1, streams=1, events=3)


def test_a_server_that_does_not_start_shows_the_end_of_its_log() -> None:
    failing = Server("failing", ["sh", "-c", "echo no room for me; exit 3"], free_port())
    with pytest.raises(ServerFailed, match="no room for me"), failing:
        pass
