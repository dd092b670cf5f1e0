"""What the listener takes from clients that it doesn't know yet."""

import asyncio
from collections.abc import Iterable
from typing import Any

import httpx2
import orjson
import pytest

from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import Running, Serve, chat

GENEROUS_S = 20
"""For what comes as soon as the machine lets it."""


async def connect(running: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = httpx2.URL(running.url)
    return await asyncio.open_connection(url.host, url.port)


async def answer(running: Running, pieces: Iterable[bytes]) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and error of the answer to these bytes; the gateway must close the connection."""
    reader, writer = await connect(running)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(GENEROUS_S):
            head, body = (await reader.read()).split(b"\r\n\r\n", 1)
    finally:
        writer.close()
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, orjson.loads(body)["error"]


def request(*headers: bytes, target: bytes = b"/health") -> bytes:
    return b"\r\n".join((b"GET %s HTTP/1.1" % target, b"host: x", *headers, b"", b""))


@pytest.fixture
async def running(serve: Serve, engine: FakeEngine) -> Running:
    return await serve(engine, limits={"header_bytes": 4096, "headers": 20})


@pytest.fixture
async def hurried(serve: Serve, engine: FakeEngine) -> Running:
    return await serve(engine, limits={"header_s": 0.2, "body_s": 0.2})


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        ([request(b"a: " + b"x" * 4096)], "header_bytes"),
        ([request(*(b"a%d: %s" % (i, b"x" * 1000) for i in range(5)))], "header_bytes"),
        ([request(target=b"/" + b"x" * 4096)], "header_bytes"),
        ([request(*(b"a%d: x" % i for i in range(20)))], "headers"),
    ],
    ids=["one long header", "many", "a long path", "too many"],
)
async def test_a_head_beyond_its_limit_is_a_431(running: Running, sent: list[bytes], limit: str) -> None:
    status, headers, error = await answer(running, sent)
    assert (status, error["code"]) == (431, "headers_too_large")
    assert f"limits.{limit}" in error["message"]
    assert headers["connection"] == "close"
    assert len(headers["x-request-id"]) == 32


async def test_a_head_without_end_is_refused_while_it_comes(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)  # its deadline is longer than this test
    reader, writer = await connect(running)
    writer.write(b"GET /health HTTP/1.1\r\na: ")
    sent = 0
    async with asyncio.timeout(GENEROUS_S):
        while not reader.at_eof() and sent < 4 << 20:
            writer.write(b"x" * 8192)
            sent += 8192
            try:
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0)
    assert sent < 2 << 20, "what the sockets and one read of the gateway hold, no more"
    writer.close()


async def test_trailers_without_end_are_refused(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    body = orjson.dumps(chat())
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    reader, writer = await connect(running)
    writer.write(head + b"%x\r\n%s\r\n0\r\na: " % (len(body), body))
    async with asyncio.timeout(GENEROUS_S):
        while not reader.at_eof():
            writer.write(b"x" * 8192)
            try:
                await writer.drain()
                await asyncio.sleep(0)
            except ConnectionError:
                break
    writer.close()
    assert not engine.requests("/v1/chat/completions")


async def test_what_is_within_the_limits_passes(running: Running) -> None:
    reader, writer = await connect(running)
    for _ in range(2):
        writer.write(request(*(b"a%d: %s" % (i, b"x" * 200) for i in range(18))))
        async with asyncio.timeout(GENEROUS_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await reader.readexactly(len(b'{"status":"ok"}'))
    writer.close()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nhost:", b"GET / HTTP/1.1\r\n", b"P"])
async def test_a_head_that_comes_too_slowly_is_a_408(hurried: Running, sent: bytes) -> None:
    status, _, error = await answer(hurried, [sent])
    assert (status, error["code"]) == (408, "request_timeout")
    assert "limits.header_s" in error["message"]


async def test_a_client_that_asks_nothing_is_closed(hurried: Running) -> None:
    for sent in (b"", b"\r\n"):
        reader, writer = await connect(hurried)
        writer.write(sent)
        async with asyncio.timeout(GENEROUS_S):
            assert await reader.read() == b""
        writer.close()


async def test_a_kept_connection_has_the_same_deadline(hurried: Running) -> None:
    reader, writer = await connect(hurried)
    writer.write(request())
    async with asyncio.timeout(GENEROUS_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(len(b'{"status":"ok"}'))
        writer.write(b"GET / HTTP/1.1\r\nhost:")
        assert (await reader.read()).startswith(b"HTTP/1.1 408")
    writer.close()


async def test_dripping_bytes_gains_no_time(hurried: Running) -> None:
    reader, writer = await connect(hurried)
    writer.write(b"GET / HTTP/1.1\r\n")
    async with asyncio.timeout(GENEROUS_S):
        while not reader.at_eof():
            writer.write(b"a")
            await asyncio.sleep(0.05)
            if reader._buffer:  # type: ignore[attr-defined]
                break
    writer.close()


async def test_a_body_that_comes_too_slowly_is_a_408(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, limits={"body_s": 0.2})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
    status, headers, error = await answer(running, [head, b"{"])
    assert (status, error["code"]) == (408, "request_timeout")
    assert "limits.body_s" in error["message"]
    assert headers["connection"] == "close"
    assert not engine.requests("/v1/chat/completions")


async def test_the_clock_stops_with_the_head(serve: Serve, engine: FakeEngine) -> None:
    engine.speed.decode_interval_s = 0.05
    running = await serve(engine, limits={"header_s": 0.8, "body_s": 0.8})
    answer = await running.chat(max_tokens=20, stream=True)
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_what_is_not_http_is_a_400_in_the_envelope(running: Running) -> None:
    status, _, error = await answer(running, [b"\x16\x03\x01 nonsense\r\n\r\n"])
    assert (status, error["code"]) == (400, "invalid_http")
