"""Whatever is sent to an agent, it goes on, and the tiers are unharmed."""

import asyncio
import itertools
import logging
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from engine_adapters import wire
from engine_adapters.agent import keys, server
from engine_adapters.agent.client import AgentClient
from engine_adapters.agent.server import Agent
from engine_adapters.errors import AgentRefused, EngineError, EngineUnreachable, SettingsError
from engine_adapters.settings import AgentSettings, PinSettings
from tests.cache.remote import Remote
from tests.engine_adapters.agent.build import Served, free_address, loopback_is_ipv6, tokens
from tests.engine_adapters.agent.conftest import MakeClient, Serve
from tests.engine_adapters.agent.fake import envelope

PROMPT = tokens(4)
DEEP = b"\x91" * 200_000
"""Arrays within arrays, as msgpack."""


def asked(endpoint: str, *frames: bytes, seconds: float = 5.0) -> list[bytes]:
    """Send these frames, whatever they are; all frames that come back until it is silent."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        for frame in frames:
            socket.send(frame)
        answers = []
        while socket.poll(int(1000 * seconds)):
            answers.append(socket.recv())
            if len(answers) == len(frames):
                break
        return answers


def refusal(frame: bytes) -> tuple[int, int, str]:
    head = msgspec.msgpack.decode(frame, type=wire.Envelope)
    return head.version, head.number, msgspec.msgpack.decode(head.body, type=wire.Refused).code


async def test_answers_while_the_engine_is_idle(serve: Serve, client_of: MakeClient) -> None:
    served = serve()
    identity = await client_of(served.agent.endpoints.control).hello()
    assert (identity.engine, identity.page_tokens, identity.threshold) == ("fake", 16, 16)
    assert set(identity.tiers) == {"gpu", "host", "ssd"}
    assert identity.tiers["host"].capacity_bytes == 16 * 8192
    assert identity.epoch == served.agent.epoch


async def test_answers_over_tcp(serve: Serve, client_of: MakeClient) -> None:
    served = serve(free_address())
    assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", "invalid"),
        (b"GET / HTTP/1.1", "invalid"),
        (os.urandom(5000), "invalid"),
        (DEEP, "invalid"),
        (b"\x93\x01\x05" + DEEP, "invalid"),
        (envelope(5, {"call": "selfdestruct"}), "invalid"),
        (envelope(5, {"call": "match"}), "invalid"),
        (envelope(5, {"call": "match", "tokens": b"12345"}), "invalid"),
        (envelope(5, {"call": "match", "tokens": b"", "computed": -1}), "invalid"),
        (envelope(5, {"call": "prefetch", "tokens": b"", "seconds": -1.0}), "invalid"),
        (envelope(5, {"call": "prefetch", "tokens": b"", "seconds": float("nan")}), "invalid"),
        (envelope(5, {"call": "snapshot", "tier": "tape"}), "invalid"),
        (envelope(5, {"call": "snapshot", "tier": "gpu"}), "unsupported"),
        (envelope(5, {"call": "snapshot", "tier": "shared"}), "unsupported"),
        (envelope(5, {"call": "clear", "tier": "gpu"}), "unsupported"),
        (envelope(5, {"call": "match", "tokens": b"", "lora": "other"}), "unknown_lora"),
        (envelope(5, {"call": "hello"}, version=2), "version"),
        (envelope(5, "of another shape", version=9), "version"),
    ],
)
async def test_what_it_cannot_do_is_refused(
    serve: Serve, client_of: MakeClient, frame: bytes, code: str
) -> None:
    served = serve()
    (answer,) = await asyncio.to_thread(asked, served.agent.endpoints.control, frame)
    number = 5 if frame[:1] == b"\x93" and DEEP not in frame else 0
    assert refusal(answer) == (wire.VERSION, number, code)
    assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"


async def test_damaged_calls_are_refused_or_done(serve: Serve, client_of: MakeClient) -> None:
    """Bytes changed, left out and put in: none of it fails inside (`serve` looks at that in the end)."""
    served, chance = serve(), random.Random(11)
    served.put(PROMPT)
    packed = wire.pack_tokens(PROMPT)
    calls: list[wire.Call] = [
        wire.Match(tokens=packed, salt="s", computed=2**62),
        wire.Prefetch(tokens=packed, seconds=0.01),
        wire.Pin(tokens=packed, seconds=0.01),
        wire.Cancel(ticket=-1),
        wire.Clear(tier="ssd", salt=""),
        wire.Snapshot(tier="host"),
    ]
    frames = []
    for number in range(600):
        frame = bytearray(envelope(number, chance.choice(calls)))
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(frame))
            frame[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        frames.append(bytes(frame))
    for start in range(0, len(frames), 100):
        some = frames[start : start + 100]
        answers = await asyncio.to_thread(asked, served.agent.endpoints.control, *some)
        assert len(answers) == len(some)
    assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"


async def test_frames_beyond_the_limit_never_arrive(serve: Serve, client_of: MakeClient) -> None:
    served = serve()
    huge = envelope(1, wire.Match(tokens=bytes(wire.MAX_FRAME)))
    assert await asyncio.to_thread(asked, served.agent.endpoints.control, huge, seconds=0.5) == []
    assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"


async def test_many_frames_and_none_in_a_message(serve: Serve, client_of: MakeClient) -> None:
    served = serve()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(served.agent.endpoints.control)
        socket.send_multipart([b"a"] * 100)
        socket.send_multipart([b"", envelope(3, wire.Hello())])
        assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"
        assert socket.poll(5000)


async def test_garbage_where_replays_are_asked_for(serve: Serve, client_of: MakeClient) -> None:
    served = serve()
    for frames in ([b""], [b"", b"short"], [b"", bytes(8), b"more"], [os.urandom(1000)]):
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(served.agent.endpoints.replay)
            socket.send_multipart(frames)
            assert not socket.poll(50)
    assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"


async def test_a_failure_is_told_without_what_was_asked(
    serve: Serve, client_of: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    served.inside.broken = True
    client = client_of(served.agent.endpoints.control)
    with caplog.at_level(logging.DEBUG), pytest.raises(AgentRefused, match="RuntimeError") as error:
        await client.match(PROMPT, salt="swordfish")
    assert error.value.code == "failed"
    assert "RuntimeError" in caplog.text
    assert "swordfish" not in caplog.text + str(error.value)
    assert (await client.hello()).engine == "fake"
    assert served.agent.failures == 1
    served.agent.failures = 0


async def test_calls_that_wait_are_bounded(
    serve: Serve, client_of: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_OPEN", 4)
    served = serve(more=[Remote(look_seconds=0.2)])
    calls = [envelope(n, wire.Match(tokens=wire.pack_tokens(tokens(2, n)))) for n in range(12)]
    answers = await asyncio.to_thread(asked, served.agent.endpoints.control, *calls)
    bodies = [msgspec.msgpack.decode(frame, type=wire.Envelope).body for frame in answers]
    decoded = [msgspec.msgpack.decode(body, type=wire.Answer) for body in bodies]
    busy = [one for one in decoded if isinstance(one, wire.Refused) and one.code == "busy"]
    assert len(busy) >= 4
    assert sum(isinstance(one, wire.Found) for one in decoded) == 12 - len(busy)
    assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"


async def test_calls_are_answered_while_others_wait(serve: Serve, client_of: MakeClient) -> None:
    served = serve(more=[Remote(look_seconds=1.0)])
    client = client_of(served.agent.endpoints.control)
    match = asyncio.create_task(client.match(PROMPT))
    stats = await client.stats()
    assert stats.threshold == 16
    assert (await match).spans == []  # the store was too late


async def test_a_client_that_goes_in_the_middle_leaves_nothing(serve: Serve, client_of: MakeClient) -> None:
    served = serve(more=[Remote(look_seconds=0.2)])
    for _ in range(5):
        async with AgentClient(served.agent.endpoints.control, zmq.asyncio.Context.instance()) as gone:
            calls = [asyncio.create_task(gone.match(PROMPT)) for _ in range(3)]
            await asyncio.sleep(0.02)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"


async def test_a_client_that_never_reads_doesnt_hold_up_others(
    serve: Serve, client_of: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    with zmq.Context() as context, context.socket(zmq.DEALER) as mute:
        mute.linger = 0
        mute.rcvhwm = 1
        mute.connect(served.agent.endpoints.control)
        for number in range(5000):
            mute.send(envelope(number, wire.Hello()))
        client = client_of(served.agent.endpoints.control)
        assert (await client.hello()).engine == "fake"


async def test_a_stop_ends_what_is_open(serve: Serve, client_of: MakeClient) -> None:
    served = serve(more=[Remote(range(64), look_seconds=0.3)])
    served.put(PROMPT)
    client = client_of(served.agent.endpoints.control)
    order = await client.prefetch(PROMPT, seconds=60)
    await client.pin(PROMPT, seconds=60)
    assert order.ticket
    waiting = asyncio.create_task(client.match(tokens(2, 9), timeout_s=20))
    await asyncio.sleep(0.02)
    began = time.monotonic()
    await asyncio.to_thread(served.agent.close)
    assert time.monotonic() - began < 6
    assert not served.agent.running
    assert served.rig.tiers.activity().leases == 0
    with pytest.raises(EngineError):
        await waiting
    with pytest.raises(EngineUnreachable):
        await client.hello()


async def test_its_addresses_can_be_had_again_after_a_stop(serve: Serve, client_of: MakeClient) -> None:
    first = serve(free_address())
    await client_of(first.agent.endpoints.control).hello()
    first.agent.close()
    bind = AgentSettings(bind=first.agent.endpoints.control)
    second = Agent(first.inside, bind, PinSettings())
    try:
        identity = await client_of(second.endpoints.control).hello()
        assert identity.epoch == second.epoch != first.agent.epoch
    finally:
        second.close()


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_an_address_at_which_somebody_answers_is_refused(serve: Serve, scheme: str) -> None:
    served = serve(free_address() if scheme == "tcp" else None)
    taken = AgentSettings(bind=served.agent.endpoints.control)
    with pytest.raises(SettingsError, match="can't be had"):
        Agent(served.inside, taken, PinSettings())


def test_a_socket_file_that_was_left_behind_is_taken(serve: Serve, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "left"))
    assert serve(f"ipc://{tmp_path}/left").agent.running


def test_no_socket_file_is_left_behind(serve: Serve, tmp_path: Path) -> None:
    served = serve(f"ipc://{tmp_path}/agent")
    assert {path.name for path in tmp_path.glob("agent*")} == {"agent", "agent.events", "agent.replay"}
    served.agent.close()
    assert not list(tmp_path.glob("agent*"))


def test_a_rank_without_ports_is_refused(serve: Serve) -> None:
    with pytest.raises(SettingsError, match="no such port"):
        Agent(serve().inside, AgentSettings(bind="tcp://127.0.0.1:65530"), PinSettings(), rank=2)


@pytest.mark.skipif(not loopback_is_ipv6(), reason="this machine has no ::1")
async def test_answers_over_ipv6(serve: Serve, client_of: MakeClient) -> None:
    served = serve(free_address().replace("127.0.0.1", "[::1]"))
    assert (await client_of(served.agent.endpoints.control).hello()).engine == "fake"


class Guarded:
    """An agent with keys, and clients of all kinds."""

    def __init__(self, serve: Serve, folder: Path, endpoint: str) -> None:
        self.agent_key = keys.make(folder / "agent")
        friend = keys.make(folder / "friend")
        keys.make(folder / "stranger")
        (folder / "clients").write_bytes(b"# who may ask\n\n" + friend + b"  the gateway\n")
        self.folder = folder
        files = {"key_file": folder / "agent" / "secret.key", "clients_file": folder / "clients"}
        self.served: Served = serve(endpoint, agent=files)

    def keys(self, who: str) -> keys.Keys:
        return keys.read_keys(self.folder / who / "secret.key", self.folder / "agent" / "public.key")


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
async def test_strangers_are_turned_away(
    serve: Serve, client_of: MakeClient, tmp_path: Path, scheme: str
) -> None:
    where = f"ipc://{tmp_path}/guarded" if scheme == "ipc" else free_address()
    guarded = Guarded(serve, tmp_path, where)
    endpoint = guarded.served.agent.endpoints.control
    assert (await client_of(endpoint, keys=guarded.keys("friend")).hello()).engine == "fake"
    wrong_server = guarded.keys("friend")._replace(server=keys.read_key(tmp_path / "friend" / "public.key"))
    for strange in (guarded.keys("stranger"), wrong_server, None):
        with pytest.raises(EngineUnreachable, match="turns this client away"):
            await client_of(endpoint, keys=strange).hello()
    assert (await client_of(endpoint, keys=guarded.keys("friend")).hello()).engine == "fake"


async def test_strangers_hear_no_stream_and_no_replay(serve: Serve, tmp_path: Path) -> None:
    guarded = Guarded(serve, tmp_path, f"ipc://{tmp_path}/guarded")
    endpoints = guarded.served.agent.endpoints

    def hears(who: str, seconds: float) -> tuple[bool, bool]:
        with zmq.Context() as context, context.socket(zmq.SUB) as sub, context.socket(zmq.DEALER) as replay:
            for socket, where in ((sub, endpoints.events), (replay, endpoints.replay)):
                socket.linger = 0
                guarded.keys(who).put_on(socket)
                socket.connect(where)
            sub.subscribe(b"")
            replay.send_multipart([b"", bytes(8)])
            replayed = bool(replay.poll(1000 * seconds))
            limit, start, heard = time.monotonic() + seconds, itertools.count(len(who)), False
            while not heard and time.monotonic() < limit:
                guarded.served.put(tokens(1, start=next(start)))
                heard = bool(sub.poll(100))
            return heard, replayed

    assert await asyncio.to_thread(hears, "friend", 20) == (True, True)
    assert await asyncio.to_thread(hears, "stranger", 0.5) == (False, False)


async def test_a_client_with_keys_reaches_no_agent_without(
    serve: Serve, client_of: MakeClient, tmp_path: Path
) -> None:
    served = serve()
    public = keys.make(tmp_path / "own")
    mine = keys.Keys(keys.read_key(tmp_path / "own" / "secret.key"), public)
    with pytest.raises(EngineUnreachable, match="turns this client away"):
        await client_of(served.agent.endpoints.control, keys=mine).hello()


@pytest.mark.parametrize("content", [b"", b"too short", b"# only a comment"])
def test_a_key_file_without_a_key_is_refused(serve: Serve, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "clients").write_bytes(b"")
    files: dict[str, Any] = {"key_file": tmp_path / "key", "clients_file": tmp_path / "clients"}
    with pytest.raises(SettingsError, match="key"):
        serve(agent=files)


def test_nothing_listens_for_an_agent_that_has_no_address(serve: Serve) -> None:
    with pytest.raises(SettingsError, match="say where"):
        Agent(serve().inside, AgentSettings(), PinSettings())
