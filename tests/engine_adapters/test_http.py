import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import trustme

from engine_adapters.errors import (
    EngineDisconnected,
    EngineTimeout,
    EngineUnreachable,
)
from engine_adapters.http import Connection, Timeouts, create_transport
from tests.fakes.engine import FakeEngine

BODY = b'{"model":"fake","prompt":"hi","max_tokens":3}'


@pytest.fixture
async def transport() -> AsyncIterator[httpx2.AsyncBaseTransport]:
    transport = create_transport()
    yield transport
    await transport.aclose()


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as fake:
        yield fake


def connect(url: str, transport: httpx2.AsyncBaseTransport, idle_s: float = 5) -> Connection:
    return Connection(url, transport, Timeouts(0.5, idle_s), "our-key")


async def test_a_reply_comes_before_its_body(
    engine: FakeEngine, transport: httpx2.AsyncBaseTransport
) -> None:
    connection = connect(engine.url + "/", transport)
    reply = await connection.send("POST", "/v1/completions", [(b"x-a", b"1")], BODY)
    assert reply.status == 200
    assert b'"choices"' in await reply.read(1 << 20)
    assert await reply.chunk() == b""
    await reply.aclose()
    seen = engine.received[-1]
    assert seen.headers["authorization"] == "Bearer our-key"
    assert seen.headers["x-a"] == "1"
    assert "user-agent" not in seen.headers
    assert seen.body == BODY


async def test_nobody_listens(transport: httpx2.AsyncBaseTransport) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(EngineUnreachable, match=url):
            await connect(url, transport).send("GET", "/health")


async def test_a_connection_that_is_never_accepted_times_out(transport: httpx2.AsyncBaseTransport) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        blockers = []
        for _ in range(4):  # fill the backlog, so that connecting waits
            blocker = socket.socket()
            blocker.setblocking(False)
            blocker.connect_ex(address)
            blockers.append(blocker)
        with pytest.raises(EngineTimeout):
            await connect(f"http://127.0.0.1:{address[1]}", transport).send("GET", "/health")
        for blocker in blockers:
            blocker.close()


async def test_silence_times_out(engine: FakeEngine, transport: httpx2.AsyncBaseTransport) -> None:
    engine.faults.hang_before_first_byte = True
    with pytest.raises(EngineTimeout):
        await connect(engine.url, transport, idle_s=0.2).send("POST", "/v1/completions", [], BODY)
    engine.faults.health_delay_s = 5
    with pytest.raises(EngineTimeout, match="/health"):
        await connect(engine.url, transport).fetch("/health", timeout_s=0.2)


async def test_a_death_before_the_answer(engine: FakeEngine, transport: httpx2.AsyncBaseTransport) -> None:
    engine.faults.die_before_first_byte = True
    with pytest.raises(EngineDisconnected):
        await connect(engine.url, transport).send("POST", "/v1/completions", [], BODY)


async def test_a_death_in_the_middle(engine: FakeEngine, transport: httpx2.AsyncBaseTransport) -> None:
    engine.speed.decode_interval_s = 0.02
    engine.faults.die_after_chunks = 2
    body = b'{"model":"fake","prompt":"hi","max_tokens":30,"stream":true}'
    reply = await connect(engine.url, transport).send("POST", "/v1/completions", [], body)
    with pytest.raises(EngineDisconnected):
        await reply.read(1 << 20)
    await reply.aclose()


async def test_closing_an_unread_reply_tells_the_engine(
    engine: FakeEngine, transport: httpx2.AsyncBaseTransport
) -> None:
    engine.speed.decode_interval_s = 0.02
    body = b'{"model":"fake","prompt":"hi","max_tokens":300,"stream":true}'
    reply = await connect(engine.url, transport).send("POST", "/v1/completions", [], body)
    await reply.chunk()
    await reply.aclose()
    async with asyncio.timeout(2):
        while not engine.received[-1].aborted:
            await asyncio.sleep(0.01)


async def test_connections_are_kept(engine: FakeEngine) -> None:
    transport = create_transport()
    connection = connect(engine.url, transport)
    for _ in range(3):
        assert (await connection.fetch("/health", timeout_s=1))[0] == 200
    session = transport.client
    assert sum(len(kept) for kept in session.connector._conns.values()) == 1
    await transport.aclose()


async def test_no_cookie_of_one_answer_reaches_the_next_request(transport: httpx2.AsyncBaseTransport) -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\ncontent-length: 2\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        connection = connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", transport)
        for _ in range(2):
            await connection.fetch("/", timeout_s=1)
    assert b"cookie" not in heads[1].lower()


async def test_our_questions_are_posted_as_json(
    engine: FakeEngine, transport: httpx2.AsyncBaseTransport
) -> None:
    connection = connect(engine.url, transport)
    status, answer = await connection.fetch("/tokenize", b'{"model":"fake","prompt":"hi"}', timeout_s=1)
    assert status == 200
    assert b'"tokens"' in answer
    assert engine.received[-1].headers["content-type"] == "application/json"


async def test_an_engine_behind_a_private_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        writer.close()

    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        trusting, ignorant = create_transport(ca_file), create_transport()
        assert await connect(url, trusting).fetch("/", timeout_s=2) == (200, b"ok")
        with pytest.raises(EngineUnreachable, match=url):
            await connect(url, ignorant).fetch("/", timeout_s=2)
        await trusting.aclose()
        await ignorant.aclose()
