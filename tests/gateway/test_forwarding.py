"""What happens between a request and its answer, before engines that misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from openai import APIError

from cache.prefix import PrefixKeys
from gateway.dispatch import _roomy
from gateway.routing import Prompt, RequestContext
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import Serve, chat, until

LONG = {"max_tokens": 400, "stream": True}


async def collect(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def test_an_answer_passes_unchanged(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    through = await running.chat(max_tokens=8)
    async with httpx2.AsyncClient(base_url=engine.url) as direct:
        straight = await direct.post("/v1/chat/completions", json=chat(max_tokens=8))
    assert through.json()["choices"] == straight.json()["choices"]
    assert through.headers["x-hpkv-replica"] == "replica-0"


async def test_fields_that_we_do_not_know_reach_the_engine(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    body = chat(max_tokens=2, n=2, stop=["x"], response_format={"type": "text"}, brand_new=[1, {"a": None}])
    answer = await running.client.post("/v1/chat/completions", json=body)
    assert len(answer.json()["choices"]) == 2
    assert engine.requests("/v1/chat/completions")[-1].json == body


async def test_a_streamed_answer_equals_the_whole_one(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    whole = (await running.chat(max_tokens=20)).json()["choices"][0]["message"]["content"]
    stream = await running.sdk.chat.completions.create(**chat(max_tokens=20), stream=True)
    assert await collect(stream) == whole


async def test_bytes_come_as_the_engine_sends_them(serve: Serve, engine: FakeEngine) -> None:
    engine.speed.decode_interval_s = 0.05
    running = await serve(engine)
    loop = asyncio.get_running_loop()
    async with running.client.stream("POST", "/v1/chat/completions", json=chat(**LONG)) as answer:
        times = []
        async for _ in answer.aiter_raw():
            times.append(loop.time())
            if len(times) == 6:
                break
    assert times[-1] - times[0] >= 0.15


async def test_usage_is_asked_for_and_kept_from_a_client_that_did_not_ask(
    serve: Serve, engine: FakeEngine
) -> None:
    running = await serve(engine)
    answer = await running.chat(max_tokens=3, stream=True)
    assert engine.requests("/v1/chat/completions")[-1].json["stream_options"] == {"include_usage": True}
    assert b'"usage"' not in answer.content
    assert answer.content.endswith(b"data: [DONE]\n\n")
    metrics = (await running.client.get("/metrics")).text
    assert 'hpkv_gateway_tokens_total{kind="completion",model="fake",replica="replica-0"} 3.0' in metrics


async def test_usage_reaches_a_client_that_asked(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    answer = await running.chat(max_tokens=3, stream=True, stream_options={"include_usage": True})
    assert answer.text.count('"usage"') == 1


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"other": 1}])
async def test_stream_options_without_usage_are_completed(
    serve: Serve, engine: FakeEngine, options: dict[str, Any] | None
) -> None:
    running = await serve(engine)
    answer = await running.chat(max_tokens=3, stream=True, stream_options=options)
    assert engine.requests("/v1/chat/completions")[-1].json["stream_options"] == {
        **(options or {}),
        "include_usage": True,
    }
    assert b'"usage"' not in answer.content


async def test_a_disconnect_frees_the_engine_in_mid_stream(serve: Serve, engine: FakeEngine) -> None:
    engine.speed.decode_interval_s = 0.02
    running = await serve(engine)
    async with running.client.stream("POST", "/v1/chat/completions", json=chat(**LONG)) as answer:
        chunks = answer.aiter_raw()  # held: dropping it closes the answer
        await anext(chunks)
        assert engine.running == 1
    await until(lambda: engine.running == 0)
    assert engine.requests("/v1/chat/completions")[-1].aborted


async def test_a_disconnect_frees_the_engine_before_the_first_byte(serve: Serve, engine: FakeEngine) -> None:
    engine.faults.hang_before_first_byte = True
    running = await serve(engine)
    waiting = asyncio.create_task(running.chat())
    await until(lambda: bool(engine.requests("/v1/chat/completions")))
    assert running.gateway.fleet["replica-0"].requests == 1
    waiting.cancel()
    await until(lambda: engine.requests("/v1/chat/completions")[-1].aborted)
    await until(lambda: running.gateway.fleet["replica-0"].requests == 0)


async def test_a_dead_replica_is_replaced_before_the_first_chunk(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    running = await serve(engine, other, routing={"policy": "round_robin"}, probes={"interval_s": 60})
    engine.stop()
    answers = [await running.chat(max_tokens=2) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert {answer.headers["x-hpkv-replica"] for answer in answers} == {"replica-1"}
    assert not running.gateway.fleet["replica-0"].up, "the refused connection alone takes it out"


async def test_a_replica_that_dies_before_its_first_chunk_is_replaced_once(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    running = await serve(engine, other)
    for fake in (engine, other):
        fake.faults.die_before_first_byte = True
    answer = await running.chat()
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "replica_failed"
    assert len(engine.requests("/v1/chat/completions")) + len(other.requests("/v1/chat/completions")) == 2


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_replica_that_says_it_cannot_serve_is_replaced(
    serve: Serve, engine: FakeEngine, other: FakeEngine, status: int
) -> None:
    running = await serve(engine, other, routing={"policy": "round_robin"})
    engine.faults.status = status
    answers = [await running.chat(max_tokens=2) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3


async def test_the_only_replicas_503_is_passed_on(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    engine.faults.status = 503
    answer = await running.chat()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "server_is_overloaded"
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("status", [b"503 Busy", b"429 Slow down", b"500 Oops"])
async def test_when_to_come_back_is_the_engines_to_say(
    serve: Serve, engine: FakeEngine, status: bytes
) -> None:
    page, later = b"<h1>busy\n building</h1>", b"retry-after: 17\r\n"
    async with dying_engine(engine, page, status=status, headers=later, length=len(page)) as url:
        running = await serve(url)
        answer = await running.chat()
    assert answer.status_code == int(status[:3])
    assert answer.headers.get_list("retry-after") == ["17"]
    assert answer.json()["error"]["message"].endswith(": <h1>busy building</h1>")


async def test_a_replica_that_has_risen_since_takes_over(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    other.faults.health_status = 503
    running = await serve(engine, other)
    risen = running.gateway.fleet["replica-1"]
    risen.rise(list(running.gateway.fleet["replica-0"].models.values()))
    risen.fall("for a while")
    engine.faults.hang_before_first_byte = True
    waiting = asyncio.create_task(running.chat(max_tokens=2))
    await until(lambda: bool(engine.requests("/v1/chat/completions")))
    other.faults.health_status = 200
    await until(lambda: risen.up)
    engine.stop()
    answer = await waiting
    assert (answer.status_code, answer.headers["x-hpkv-replica"]) == (200, "replica-1")


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_are_signs_of_life_and_refusals_are_not(
    serve: Serve, engine: FakeEngine, stream: bool
) -> None:
    running = await serve(engine, probes={"interval_s": 60})
    replica = running.gateway.fleet["replica-0"]
    await running.chat(max_tokens=2, stream=stream)
    assert replica.take_answered()
    assert not replica.take_answered()
    engine.faults.status = 429
    await running.chat(stream=stream)
    assert not replica.take_answered()


@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_an_engines_refusal_is_passed_on_in_the_envelope(
    serve: Serve, engine: FakeEngine, other: FakeEngine, status: int
) -> None:
    running = await serve(engine, other)
    for fake in (engine, other):
        fake.faults.status = status
    answer = await running.chat()
    error = answer.json()["error"]
    assert answer.status_code == status
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] is None or isinstance(error["code"], str)
    assert len(engine.requests("/v1/chat/completions")) + len(other.requests("/v1/chat/completions")) == 1


async def test_a_replica_that_refuses_our_credentials_is_the_operators_problem(
    serve: Serve, engine: FakeEngine
) -> None:
    running = await serve(engine)
    engine.faults.status = 401
    answer = await running.chat()
    assert answer.status_code == 502
    assert "api_key" in answer.json()["error"]["message"]


async def test_a_stream_that_breaks_ends_with_an_error_event(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    running = await serve(engine, other)
    for fake in (engine, other):
        fake.speed.decode_interval_s = 0.02
        fake.faults.die_after_chunks = 3
    answer = await running.chat(**LONG)
    events = answer.content.split(b"\n\n")
    assert b'"replica_failed"' in events[-2]
    assert b"[DONE]" not in answer.content
    assert len(engine.requests("/v1/chat/completions")) + len(other.requests("/v1/chat/completions")) == 1


async def test_the_sdk_raises_when_a_stream_breaks(serve: Serve, engine: FakeEngine) -> None:
    engine.speed.decode_interval_s = 0.02
    engine.faults.die_after_chunks = 3
    running = await serve(engine)
    stream = await running.sdk.chat.completions.create(**chat(max_tokens=50), stream=True)
    with pytest.raises(APIError, match="broke off"):
        await collect(stream)


async def test_half_an_event_never_precedes_the_error_event(serve: Serve, engine: FakeEngine) -> None:
    async with dying_engine(engine, b'data: {"choices":[]}\n\ndata: {"choi') as url:
        running = await serve(url)
        answer = await running.chat(stream=True)
    events = answer.content.split(b"\n\n")
    assert events[0] == b'data: {"choices":[]}'
    assert b'"replica_failed"' in events[1]
    assert events[2:] == [b""]


async def test_a_document_that_breaks_cuts_the_connection(serve: Serve, engine: FakeEngine) -> None:
    async with dying_engine(engine, b'{"choices":[', content_type=b"application/json") as url:
        running = await serve(url)
        with pytest.raises(httpx2.RemoteProtocolError):
            await running.chat()


@contextlib.asynccontextmanager
async def dying_engine(
    engine: FakeEngine,
    body: bytes,
    content_type: bytes = b"text/event-stream",
    status: bytes = b"200 OK",
    headers: bytes = b"",
    length: int = 999,
) -> AsyncIterator[str]:
    """In front of a fake: probes reach it, chats are answered with the beginning of a longer answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"POST" in head:
            head = b"HTTP/1.1 %s\r\n%slocation: /x\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % (status, headers, content_type, length))
            writer.write(body)
        else:
            path = head.split()[1].decode()
            async with httpx2.AsyncClient(base_url=engine.url) as client:
                content = (await client.get(path)).content
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_silence_before_the_first_chunk_is_a_504(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, timeouts={"first_chunk_s": 0.3})
    engine.faults.hang_before_first_byte = True
    answer = await running.chat()
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "replica_timeout"
    await until(lambda: engine.requests("/v1/chat/completions")[-1].aborted)


async def test_waiting_requests_leave_a_frozen_replica_once(
    serve: Serve, engine: FakeEngine, other: FakeEngine
) -> None:
    probes = {"interval_s": 0.05, "timeout_s": 0.4, "failures": 3}
    running = await serve(engine, other, routing={"policy": "round_robin"}, probes=probes)
    engine.freeze()
    try:
        answers = await asyncio.gather(*(running.chat(max_tokens=2) for _ in range(6)))
        assert [answer.status_code for answer in answers] == [200] * 6
        assert {answer.headers["x-hpkv-replica"] for answer in answers} == {"replica-1"}
        assert len(other.requests("/v1/chat/completions")) == 6
    finally:
        engine.thaw()
    await until(lambda: running.gateway.fleet["replica-0"].up)


async def test_a_long_silence_in_mid_stream_ends_it(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, timeouts={"first_chunk_s": 0.5, "idle_s": 0.5})
    engine.faults.hang_after_chunks = 2
    answer = await running.chat(**LONG)
    assert b'"error"' in answer.content.split(b"\n\n")[-2]


async def test_the_limit_in_mid_answer_is_its_own(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine, timeouts={"first_chunk_s": 30, "idle_s": 0.3})
    engine.faults.hang_after_chunks = 2
    async with asyncio.timeout(20):
        answer = await running.chat(**LONG)
    assert b'"error"' in answer.content.split(b"\n\n")[-2]


@pytest.mark.parametrize("status", [b"302 Found", b"101 Switching Protocols", b"777 Odd"])
async def test_answers_that_no_engine_gives(serve: Serve, engine: FakeEngine, status: bytes) -> None:
    async with dying_engine(engine, b"x" * 999, status=status) as url:
        running = await serve(url)
        answer = await running.chat()
    assert answer.status_code == 502
    assert "location" not in answer.headers


async def test_a_prompt_goes_where_it_fits(serve: Serve) -> None:
    async with FakeEngine(max_model_len=100) as small, FakeEngine(max_model_len=8000) as large:
        running = await serve(small, large, routing={"policy": "round_robin"})
        prompt = Prompt(500, PrefixKeys([1] * 500, 0))
        context = RequestContext("", "", "fake", {}, prompt)
        fitting = _roomy(list(running.gateway.fleet), context)
        assert [replica.name for replica in fitting] == ["replica-1"]
        too_long = RequestContext("", "", "fake", {}, Prompt(9000, PrefixKeys([1] * 9000, 0)))
        assert len(_roomy(list(running.gateway.fleet), too_long)) == 2


async def test_200_concurrent_streams(serve: Serve, engine: FakeEngine, other: FakeEngine) -> None:
    running = await serve(engine, other)
    expected = (await running.chat("hi", max_tokens=10)).json()["choices"][0]["message"]["content"]

    async def one() -> str:
        return await collect(
            await running.sdk.chat.completions.create(**chat("hi", max_tokens=10), stream=True)
        )

    assert await asyncio.gather(*(one() for _ in range(200))) == [expected] * 200
    assert [replica.requests for replica in running.gateway.fleet] == [0, 0]


async def test_custom_headers_pass_both_ways_and_credentials_do_not(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    headers = {
        "x-custom": "yes",
        "traceparent": "00-1-2-01",
        "authorization": "Bearer secret",
        "cookie": "a=b",
        "connection": "x-hop",
        "x-hop": "1",
        "x-request-id": "mine-1",
    }
    answer = await running.client.post("/v1/chat/completions", json=chat(max_tokens=1), headers=headers)
    seen = engine.requests("/v1/chat/completions")[-1].headers
    assert seen["x-custom"] == "yes"
    assert seen["traceparent"] == "00-1-2-01"
    assert seen["x-request-id"] == answer.headers["x-request-id"] == "mine-1"
    assert not {"authorization", "cookie", "x-hop"} & set(seen)


async def test_a_replicas_credentials_are_ours(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(replicas=[{"url": engine.url, "api_key": "replica-key"}])
    await running.client.post(
        "/v1/chat/completions", json=chat(max_tokens=1), headers={"authorization": "Bearer user"}
    )
    assert engine.requests("/v1/chat/completions")[-1].headers["authorization"] == "Bearer replica-key"


async def test_each_model_goes_to_its_replicas(serve: Serve) -> None:
    async with FakeEngine("small") as small, FakeEngine("large") as large:
        running = await serve(small, large)
        for model, name in (("small", "replica-0"), ("large", "replica-1")):
            answer = await running.chat(model=model, max_tokens=1)
            assert answer.headers["x-hpkv-replica"] == name
        answer = await running.chat(model="huge")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["error"]["param"] == "model"


async def test_without_a_living_replica_it_is_a_503(serve: Serve, engine: FakeEngine) -> None:
    running = await serve(engine)
    engine.stop()
    await until(lambda: not running.gateway.fleet.ready)
    answer = await running.chat()
    assert answer.status_code == 503
    engine.start()
    await until(lambda: running.gateway.fleet.ready)
    assert (await running.chat(max_tokens=1)).status_code == 200
