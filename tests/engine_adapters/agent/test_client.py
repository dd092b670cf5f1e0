"""The client against sockets that answer well, badly, late and not at all."""

import asyncio
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine_adapters import wire
from engine_adapters.errors import (
    AgentRefused,
    EngineDisconnected,
    EngineTimeout,
    EngineUnreachable,
    WireError,
)
from tests.engine_adapters.agent.conftest import MakeClient
from tests.engine_adapters.agent.fake import answering, envelope
from tests.ports import free_port

FOUND = wire.Found(spans=[wire.Span("host", 32), wire.Span("ssd", 64)], cut=64)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/agent"


async def test_answers_find_their_calls_in_any_order(client_of: MakeClient, endpoint: str) -> None:
    held: list[wire.Envelope] = []

    def how(call: wire.Envelope) -> list[bytes]:
        held.append(call)
        if len(held) < 20:
            return []
        decoded = [(one, msgspec.msgpack.decode(one.body, type=wire.Call)) for one in held]
        return [
            envelope(one.number, wire.Progress(tokens=call.ticket, loaded=0, running=True))
            for one, call in reversed(decoded)
            if isinstance(call, wire.Status)
        ]

    with answering(endpoint, how):
        client = client_of(endpoint)
        answers = await asyncio.gather(*(client.status(ticket) for ticket in range(20)))
    assert [answer.tokens for answer in answers] == list(range(20))


async def test_a_prompt_arrives_as_it_was_given(client_of: MakeClient, endpoint: str) -> None:
    with answering(endpoint, lambda call: [envelope(call.number, FOUND)]) as came:
        found = await client_of(endpoint).match(np.arange(5, dtype=np.uint32), "salt", "lora", computed=16)
    call = msgspec.msgpack.decode(came[0].body, type=wire.Call)
    assert found == FOUND
    assert call == wire.Match(tokens=wire.pack_tokens(range(5)), salt="salt", lora="lora", computed=16)


async def test_a_refusal_says_why(client_of: MakeClient, endpoint: str) -> None:
    refused = wire.Refused(code="unknown_lora", message="no such adapter")
    with (
        answering(endpoint, lambda call: [envelope(call.number, refused)]),
        pytest.raises(AgentRefused, match="no such adapter") as error,
    ):
        await client_of(endpoint).hello()
    assert error.value.code == "unknown_lora"


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (lambda call: envelope(call.number, FOUND, version=9), "speaks version 9, this client 1"),
        (lambda call: envelope(call.number, {"answer": "riddle"}), "can't be read"),
        (lambda call: envelope(call.number, FOUND), "answered Identity with Found"),
        (lambda call: b"HTTP/1.1 400 Bad Request", "is it the right address"),
        (lambda call: b"\x93\x01\x01" + b"\x91" * 200_000, "is it the right address"),
    ],
    ids=["another version", "unknown answer", "another answer", "garbage", "too deep"],
)
async def test_answers_that_no_agent_gives(client_of: MakeClient, endpoint: str, frame, says: str) -> None:
    with answering(endpoint, lambda call: [frame(call)]), pytest.raises(WireError, match=says):
        await client_of(endpoint).hello()


async def test_a_mute_agent_costs_the_deadline_and_no_more(client_of: MakeClient, endpoint: str) -> None:
    client = client_of(endpoint)
    answers: list[bytes] = []
    with answering(endpoint, lambda call: answers.pop(0) if answers else []) as came:
        began = time.monotonic()
        with pytest.raises(EngineTimeout):
            await client.hello(timeout_s=0.5)
        assert time.monotonic() - began < 1.5
        assert len(came) == 1
        answers.append([envelope(came[0].number, FOUND), envelope(came[0].number + 1, FOUND)])
        assert await client.call(wire.Hello(), wire.Found) == FOUND, (
            "the late answer was taken for this one's"
        )


async def test_a_caller_that_is_cancelled_leaves_nothing_behind(client_of: MakeClient, endpoint: str) -> None:
    client = client_of(endpoint)
    with answering(endpoint, lambda call: []) as came:
        calls = [asyncio.create_task(client.hello()) for _ in range(5)]
        while len(came) < 5:
            await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert client.in_flight == 0


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
async def test_nobody_there_is_known_at_once(client_of: MakeClient, tmp_path: Path, scheme: str) -> None:
    endpoint = f"ipc://{tmp_path}/nobody" if scheme == "ipc" else f"tcp://127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(EngineUnreachable, match="nobody listens"):
        await client_of(endpoint).hello(timeout_s=30)
    assert time.monotonic() - began < 10


async def test_an_address_that_is_none(client_of: MakeClient) -> None:
    with pytest.raises(EngineUnreachable, match="can't be reached"):
        await client_of("carrier-pigeon://loft").hello()


async def test_calls_in_flight_fail_when_the_agent_goes_and_later_ones_reach_the_next(
    client_of: MakeClient, endpoint: str
) -> None:
    client = client_of(endpoint)
    with answering(endpoint, lambda call: []) as came:
        call = asyncio.create_task(client.hello(timeout_s=30))
        while not came:
            await asyncio.sleep(0.01)
    late = asyncio.create_task(client.hello(timeout_s=30))  # before its end can be known here
    with pytest.raises(EngineDisconnected):
        await call
    with pytest.raises((EngineDisconnected, EngineUnreachable)):
        await late
    with pytest.raises(EngineUnreachable, match="it has gone"):
        await client.hello()
    with answering(endpoint, lambda call: [envelope(call.number, FOUND)]) as came:
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            try:
                assert await client.call(wire.Hello(), wire.Found) == FOUND
                break
            except EngineUnreachable:
                await asyncio.sleep(0.05)
        assert len(came) == 1, "what was asked of the dead one reached its heir"


async def test_a_snapshot_comes_in_pieces(client_of: MakeClient, endpoint: str) -> None:
    keys, ends = np.arange(6, dtype="<u8"), np.arange(6, dtype="<u4")

    def how(call: wire.Envelope) -> list[bytes]:
        pieces = [slice(0, 4), slice(4, 6)]
        return [
            envelope(
                call.number,
                wire.Listing(
                    tier="ssd", sequence=7, keys=keys[p].tobytes(), ends=ends[p].tobytes(), last=p.stop == 6
                ),
            )
            for p in pieces
        ]

    client = client_of(endpoint)
    with answering(endpoint, how):
        pieces = [piece async for piece in client.snapshot("ssd")]
    assert [len(piece.keys) for piece in pieces] == [4, 2]
    assert np.concatenate([piece.keys for piece in pieces]).tolist() == list(range(6))
    assert np.concatenate([piece.ends for piece in pieces]).tolist() == list(range(6))
    assert {piece.sequence for piece in pieces} == {7}
    assert client.in_flight == 0


async def test_a_prompt_larger_than_a_frame_is_refused_here(client_of: MakeClient, endpoint: str) -> None:
    with pytest.raises(AgentRefused, match="more than an agent takes"):
        await client_of(endpoint).match(np.zeros(wire.MAX_FRAME // 4 + 1, np.uint32))


async def test_closing_fails_what_is_in_flight(client_of: MakeClient, endpoint: str) -> None:
    client = client_of(endpoint)
    with answering(endpoint, lambda call: []) as came:
        call = asyncio.create_task(client.hello(timeout_s=30))
        while not came:
            await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(EngineDisconnected):
            await call
