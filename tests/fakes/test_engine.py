import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import msgspec
import openai
import pytest
import zmq
import zmq.asyncio

from tests.fakes.engine import FakeEngine
from tests.fakes.faults import Faults

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "a prompt of some length, " * 8}]}


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(events=True, loras=["tuned"]) as engine:
        yield engine


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=engine.url, timeout=5, trust_env=False) as client:
        yield client


async def chat(client: httpx2.AsyncClient, **fields: object) -> dict:
    answer = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_openai_package_reads_every_shape(engine: FakeEngine) -> None:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as sdk:
        whole = await sdk.chat.completions.create(**CHAT, max_tokens=20, n=2, logprobs=True)
        assert [choice.finish_reason for choice in whole.choices] == ["length", "length"]
        assert len(whole.choices[0].logprobs.content) == 20
        stream = await sdk.chat.completions.create(
            **CHAT, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 20
        tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
        called = await sdk.chat.completions.create(**CHAT, tools=[tool])
        assert called.choices[0].message.tool_calls[0].function.name == "weather"
        completion = await sdk.completions.create(model="fake", prompt="once", max_tokens=9, stop=["zzz"])
        assert len(completion.choices[0].text) == 9
        response = await sdk.responses.create(model="fake", input="once", max_output_tokens=9)
        assert len(response.output_text) == 9
        events = [e async for e in await sdk.responses.create(model="fake", input="once", stream=True)]
        assert events[-1].response.output_text
        assert (await sdk.responses.retrieve(response.id)).output_text == response.output_text
        assert [model.id async for model in await sdk.models.list()] == ["fake", "tuned"]
        with pytest.raises(openai.NotFoundError):
            await sdk.embeddings.create(model="fake", input="once")
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await sdk.chat.completions.create(model="other", messages=CHAT["messages"])


async def test_a_stop_string_ends_the_answer_before_itself(client: httpx2.AsyncClient) -> None:
    text = (await chat(client, max_tokens=40))["choices"][0]["message"]["content"]
    stop = text[10:14]
    choice = (await chat(client, max_tokens=40, stop=[stop]))["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def test_messages_rerank_score_and_embeddings_answer() -> None:
    async with FakeEngine(pooling=True) as engine, httpx2.AsyncClient(base_url=engine.url) as client:
        message = (await client.post("/v1/messages", json=CHAT | {"max_tokens": 7})).json()
        assert len(message["content"][0]["text"]) == 7
        streamed = await client.post("/v1/messages", json=CHAT | {"max_tokens": 7, "stream": True})
        assert streamed.text.startswith("event: message_start")
        assert streamed.text.rstrip().endswith('{"type": "message_stop"}')
        embedded = (await client.post("/v1/embeddings", json={"model": "fake", "input": ["a", "bb"]})).json()
        assert [entry["index"] for entry in embedded["data"]] == [0, 1]
        ranked = await client.post("/v1/rerank", json={"query": "q", "documents": ["a", "bb"]})
        assert [result["index"] for result in ranked.json()["results"]] == [1, 0]
        scored = await client.post("/v1/score", json={"text_1": "q", "text_2": ["a", "bb"]})
        assert len(scored.json()["data"]) == 2


async def test_tokenize_and_render_give_the_prompt_that_is_computed(client: httpx2.AsyncClient) -> None:
    tokens = (await client.post("/tokenize", json=CHAT)).json()["tokens"]
    rendered = (await client.post("/v1/chat/completions/render", json=CHAT)).json()["token_ids"]
    assert tokens == rendered
    assert (await chat(client))["usage"]["prompt_tokens"] == len(tokens)
    text = (await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
    assert CHAT["messages"][0]["content"] in text


async def test_a_second_request_hits_the_blocks_of_the_first(engine: FakeEngine, client) -> None:
    cached = [(await chat(client))["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    prompt = len(engine.tokenizer.render(CHAT["messages"]))
    assert cached == [0, (prompt - 1) // 16 * 16]
    assert (await chat(client, cache_salt="other"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert (await chat(client, model="tuned"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    metrics = (await client.get("/metrics")).text
    assert f'vllm:prefix_cache_hits_total{{engine="0",model_name="fake"}} {cached[1]}.0' in metrics


async def test_eviction_keeps_the_prefix_longer_than_what_extends_it() -> None:
    async with FakeEngine(num_blocks=8) as engine, httpx2.AsyncClient(base_url=engine.url) as client:
        for prompt in ("a" * 96, "b" * 64):
            await client.post("/v1/completions", json={"model": "fake", "prompt": prompt, "max_tokens": 1})
        assert len(engine.cache) == 8
        assert engine.cache.match([ord("a")] * 97) == 64
        assert engine.cache.match([ord("b")] * 65) == 64


class Subscriber:
    """Reads the fake's events as a gateway would."""

    def __init__(self, engine: FakeEngine) -> None:
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.connect(engine.publisher.endpoint)
        self.socket.subscribe("kv")
        self.replay_socket = self.context.socket(zmq.DEALER)
        self.replay_socket.connect(engine.publisher.replay_endpoint)

    async def batch(self) -> tuple[int, list[dict]]:
        topic, sequence, payload = await asyncio.wait_for(self.socket.recv_multipart(), 2)
        assert topic == b"kv"
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        return int.from_bytes(sequence, "big"), events

    async def replay(self, first: int) -> list[int]:
        await self.replay_socket.send_multipart([b"", first.to_bytes(8, "big")])
        sequences = []
        while True:
            _, _, sequence, payload = await asyncio.wait_for(self.replay_socket.recv_multipart(), 2)
            if int.from_bytes(sequence, "big", signed=True) == -1:
                assert payload == b""
                return sequences
            sequences.append(int.from_bytes(sequence, "big"))


@pytest.fixture
async def subscriber(engine: FakeEngine) -> AsyncIterator[Subscriber]:
    subscriber = Subscriber(engine)
    await asyncio.sleep(0.1)  # a subscription has no acknowledgement
    yield subscriber
    subscriber.context.destroy(linger=0)


async def test_events_name_the_blocks_and_a_reset_waits_for_the_next_batch(
    engine: FakeEngine, client, subscriber: Subscriber
) -> None:
    await chat(client, cache_salt="s", max_tokens=1)
    sequence, (stored,) = await subscriber.batch()
    assert sequence == 0
    assert stored["type"] == "BlockStored"
    assert stored["parent_block_hash"] is None
    assert len(stored["token_ids"]) == 16 * len(stored["block_hashes"])
    assert stored["extra_keys"][:2] == [["s"], None]
    engine.reset_prefix_cache()
    await chat(client, max_tokens=1)
    sequence, events = await subscriber.batch()
    assert sequence == 1
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]


async def test_gaps_mutes_and_restarts_of_the_event_stream(
    engine: FakeEngine, client, subscriber: Subscriber
) -> None:
    async def traffic(text: str) -> None:
        await client.post("/v1/completions", json={"model": "fake", "prompt": text * 20, "max_tokens": 1})

    engine.publisher.withhold(1)
    await traffic("a")
    await traffic("b")
    assert (await subscriber.batch())[0] == 1
    assert await subscriber.replay(0) == [0, 1]
    engine.publisher.muted = True
    await traffic("c")
    engine.publisher.muted = False
    engine.publisher.forget()
    await traffic("d")
    assert (await subscriber.batch())[0] == 2
    assert await subscriber.replay(0) == [2]
    await asyncio.to_thread(engine.restart)
    await traffic("a")
    assert (await subscriber.batch())[0] == 0
    engine.publisher.publish_raw(b"kv", (9).to_bytes(8, "big"), msgspec.msgpack.encode([0.0, [], 0]))
    assert await subscriber.batch() == (9, [])


async def test_requests_beyond_the_batch_wait_and_time_passes_as_set() -> None:
    async with FakeEngine(max_running=2) as engine, httpx2.AsyncClient(base_url=engine.url) as client:
        engine.speed.decode_interval_s = 0.05
        tasks = [asyncio.create_task(chat(client, max_tokens=10)) for _ in range(3)]
        async with asyncio.timeout(20):
            while (engine.running, engine.waiting) != (2, 1):
                await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        assert (engine.running, engine.waiting) == (0, 0)
        engine.speed.prefill_tokens_per_s = 1000
        start = time.monotonic()
        await client.post("/v1/completions", json={"model": "fake", "prompt": "x" * 200, "max_tokens": 1})
        assert time.monotonic() - start >= 0.2


async def test_a_client_that_leaves_frees_the_engine(engine: FakeEngine, client) -> None:
    engine.speed.decode_interval_s = 0.01
    body = CHAT | {"max_tokens": 1000, "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        chunks = answer.aiter_bytes()  # held: dropping it closes the answer
        await anext(chunks)
        assert engine.running == 1
    async with asyncio.timeout(5):  # the answer takes 10 s
        while engine.running:
            await asyncio.sleep(0.01)
    assert engine.received[-1].aborted
    assert not engine.received[-1].finished


async def test_each_fault_shows(engine: FakeEngine, client) -> None:
    stream = CHAT | {"stream": True, "max_tokens": 9}
    path = "/v1/chat/completions"

    async def fails(body: dict, **faults: object) -> None:
        engine.faults = Faults(**faults)
        with pytest.raises(httpx2.TransportError):
            await client.post(path, json=body, timeout=0.3)

    await fails(CHAT, hang_before_first_byte=True)
    await fails(stream, hang_after_chunks=2)
    await fails(CHAT, die_before_first_byte=True)
    await fails(stream, die_after_chunks=0)
    await fails(stream, die_after_chunks=3)
    for status in (429, 500, 503):
        engine.faults = Faults(status=status)
        answer = await client.post(path, json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
    engine.faults = Faults(malformed=True)
    with pytest.raises(json.JSONDecodeError):
        (await client.post(path, json=CHAT)).json()
    engine.faults = Faults(health_status=503, health_delay_s=0.1)
    start = time.monotonic()
    assert (await client.get("/health")).status_code == 503
    assert time.monotonic() - start >= 0.1


async def test_it_stops_and_comes_back_on_its_port(engine: FakeEngine, client) -> None:
    await asyncio.to_thread(engine.stop)
    with pytest.raises(httpx2.ConnectError):
        await client.get("/health")
    await asyncio.to_thread(engine.start)
    assert (await client.get("/health")).status_code == 200
    engine.freeze()
    with pytest.raises(httpx2.ReadTimeout):
        await client.get("/health", timeout=0.2)
    engine.thaw()
    assert (await client.get("/health")).status_code == 200


async def test_requests_queue_again_after_a_stop() -> None:
    async with FakeEngine(max_running=1) as engine, httpx2.AsyncClient(base_url=engine.url) as client:
        for _ in range(2):
            engine.speed.decode_interval_s = 0.1
            cut = [asyncio.create_task(chat(client, max_tokens=1000)) for _ in range(3)]
            while (engine.running, engine.waiting) != (1, 2):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(engine.stop)
            assert all(isinstance(end, httpx2.TransportError) for end in await _ends(cut))
            await asyncio.to_thread(engine.start)
            assert (engine.running, engine.waiting) == (0, 0)
            engine.speed.decode_interval_s = 0
            served = [asyncio.create_task(chat(client, max_tokens=2)) for _ in range(3)]
            assert not any(isinstance(end, Exception) for end in await _ends(served))


async def _ends(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_it_records_what_it_received(engine: FakeEngine, client) -> None:
    await client.post(
        "/v1/chat/completions", json=CHAT | {"unknown": 1}, headers={"X-Request-Id": "r1", "X-Custom": "c"}
    )
    (request,) = engine.requests("/v1/chat/completions")
    assert request.request_id == "r1"
    assert request.headers["x-custom"] == "c"
    assert request.json["unknown"] == 1
    assert request.finished
    sources = (await client.get("/kv_event_sources")).json()
    assert sources["0"]["endpoint"] == engine.publisher.endpoint


async def test_bad_requests_get_vllms_errors(client) -> None:
    for body, message in ((b"{nonsense", "JSON decode"), (b'{"model": "fake"}', "messages")):
        answer = await client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    long = {"model": "fake", "prompt": "x" * 8192}
    assert "context length" in (await client.post("/v1/completions", json=long)).json()["error"]["message"]
