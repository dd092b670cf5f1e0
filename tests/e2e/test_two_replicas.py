"""The gateway over two real vLLM replicas, through the real OpenAI SDK."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import orjson
import pytest
from openai import APIError, AsyncOpenAI, NotFoundError

from tests.engines import MODEL, Replica
from tests.serving import Serving, serving
from tests.waiting import until

pytestmark = pytest.mark.engine

Replicas = tuple[Replica, ...]
LONG: dict[str, Any] = {"max_tokens": 800, "extra_body": {"ignore_eos": True}}
ENDLESS: dict[str, Any] = {**LONG, "max_tokens": 6000}
"""For answers that nobody waits for."""


@pytest.fixture
def served(replicas: Replicas) -> Iterator[Serving]:
    flags = [flag for replica in replicas for flag in ("--replica", replica.url)]
    with serving(*flags, "--policy", "round_robin") as running:
        until(lambda: all(up(running, replica.url.removeprefix("http://")) for replica in replicas), 60)
        yield running


@pytest.fixture
async def sdk(served: Serving) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def chat(content: str = "What is the capital of France?", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, **fields}


def metric(replicas: Replicas, name: str) -> float:
    """The sum over the replicas' engines."""
    pages = [httpx2.get(f"{replica.url}/metrics", timeout=30).text for replica in replicas]
    lines = [line for page in pages for line in page.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def running(replicas: Replicas) -> float:
    return metric(replicas, "vllm:num_requests_running")


async def test_a_chat(sdk: AsyncOpenAI, replicas: Replicas) -> None:
    answer = await sdk.chat.completions.create(**chat(max_tokens=16))
    direct = httpx2.post(f"{replicas[0].url}/v1/chat/completions", json=chat(max_tokens=16), timeout=60)
    assert answer.choices[0].message.content == direct.json()["choices"][0]["message"]["content"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16


async def test_a_stream_is_the_same_text_piece_by_piece(sdk: AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(**chat(max_tokens=24))
    stream = await sdk.chat.completions.create(**chat(max_tokens=24), stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 5


async def test_usage_of_a_stream_comes_when_asked_for(sdk: AsyncOpenAI) -> None:
    options = {"include_usage": True}
    stream = await sdk.chat.completions.create(**chat(max_tokens=4), stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


async def test_the_options_of_a_chat(sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        **{**chat(max_tokens=12, n=2, stop=["."], logprobs=True, top_logprobs=2, seed=1), "temperature": 1}
    )
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs is not None
    shape = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": shape}}
    answer = await sdk.chat.completions.create(**chat(max_tokens=60, response_format=schema))
    assert set(orjson.loads(answer.choices[0].message.content or "")) == {"city"}


async def test_tools_reach_the_engine(sdk: AsyncOpenAI) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    forced = {"type": "function", "function": {"name": "weather"}}
    answer = await sdk.chat.completions.create(
        **chat("Weather in Paris?", max_tokens=60, tools=[tool], tool_choice=forced)
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "weather"
    orjson.loads(calls[0].function.arguments)


async def test_completions_and_models(sdk: AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model=MODEL, prompt="One, two,", max_tokens=3, temperature=0)
    assert answer.choices[0].text
    assert [model.id async for model in sdk.models.list()] == [MODEL]


async def test_a_model_without_embeddings_says_so(sdk: AsyncOpenAI) -> None:
    with pytest.raises(APIError) as refused:
        await sdk.embeddings.create(model=MODEL, input="text")
    body = refused.value.body
    assert isinstance(body, dict)
    assert body["message"]
    assert body["code"] is None or isinstance(body["code"], str)


async def test_an_unknown_model(sdk: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError) as refused:
        await sdk.chat.completions.create(**{**chat(), "model": "other"})
    assert refused.value.code == "model_not_found"


async def test_a_prompt_beyond_the_context(sdk: AsyncOpenAI) -> None:
    with pytest.raises(APIError) as refused:
        await sdk.chat.completions.create(**chat("word " * 20000))
    assert refused.value.code == "context_length_exceeded"


async def test_the_engines_refusal_names_the_field(served: Serving) -> None:
    answer = served.client.post("/v1/chat/completions", json=chat(top_p=7))
    assert answer.status_code == 400
    assert "top_p" in answer.json()["error"]["message"]


async def test_responses_and_messages_and_tokenize(served: Serving) -> None:
    answer = served.client.post("/v1/responses", json={"model": MODEL, "input": "Hi", "max_output_tokens": 8})
    assert answer.status_code == 200, answer.text
    body = chat("Hi", max_tokens=8)
    assert served.client.post("/v1/messages", json=body).status_code == 200
    tokens = served.client.post("/tokenize", json={"model": MODEL, "prompt": "Hello"}).json()["tokens"]
    text = served.client.post("/detokenize", json={"model": MODEL, "tokens": tokens}).json()["prompt"]
    assert text == "Hello"


async def test_a_stored_responses_follow_ups_go_to_its_replica(sdk: AsyncOpenAI, replicas: Replicas) -> None:
    for _ in range(3):  # round robin would send some of these elsewhere
        first = await sdk.responses.create(model=MODEL, input="Hi", max_output_tokens=8)
        again = await sdk.responses.retrieve(first.id)
        assert again.id == first.id
        second = await sdk.responses.create(
            model=MODEL, input="And?", max_output_tokens=8, previous_response_id=first.id
        )
        assert second.previous_response_id == first.id


async def test_a_disconnect_in_mid_stream_frees_the_engine(sdk: AsyncOpenAI, replicas: Replicas) -> None:
    generated = "vllm:generation_tokens_total"
    before = metric(replicas, generated)
    streams = [await sdk.chat.completions.create(**chat(**ENDLESS), stream=True) for _ in range(2)]
    for stream in streams:
        await anext(aiter(stream))
    await asyncio.to_thread(until, lambda: running(replicas) == 2, 15)
    for stream in streams:
        await stream.close()
    await asyncio.to_thread(until, lambda: running(replicas) == 0, 15)
    # Otherwise they may just have come to their end.
    assert metric(replicas, generated) - before < 2 * ENDLESS["max_tokens"]


async def test_200_concurrent_streams(sdk: AsyncOpenAI) -> None:
    async def one() -> int:
        stream = await sdk.chat.completions.create(**chat("Hi", max_tokens=4), stream=True)
        return len([chunk async for chunk in stream])

    counts = await asyncio.gather(*(one() for _ in range(200)))
    assert min(counts) >= 2


async def test_a_replica_killed_in_mid_stream(sdk: AsyncOpenAI, served: Serving, replicas: Replicas) -> None:
    streams: dict[str, Any] = {}
    while len(streams) < 2:
        raw = await sdk.chat.completions.with_raw_response.create(**chat(**LONG), stream=True)
        streams[raw.headers["x-hpkv-replica"]] = aiter(raw.parse())
    for stream in streams.values():
        await anext(stream)
    killed = replicas[0].url.removeprefix("http://")
    await asyncio.to_thread(replicas[0].kill)
    with pytest.raises(APIError, match="broke off"):
        async for _ in streams[killed]:
            pass
    answers = [await sdk.chat.completions.create(**chat(max_tokens=2)) for _ in range(4)]
    assert all(answer.choices for answer in answers)
    (living,) = (stream for name, stream in streams.items() if name != killed)
    rest = [chunk async for chunk in living]
    assert rest[-1].choices[0].finish_reason == "length"
    await asyncio.to_thread(replicas[0].start)
    await asyncio.to_thread(replicas[0].wait_ready)

    def back() -> bool:
        return up(served, killed)

    await asyncio.to_thread(until, back, 9)
    used = set()
    for _ in range(4):
        raw = await sdk.chat.completions.with_raw_response.create(**chat(max_tokens=1))
        used.add(raw.headers["x-hpkv-replica"])
    assert killed in used


async def test_a_frozen_replica(sdk: AsyncOpenAI, served: Serving, replicas: Replicas) -> None:
    frozen = replicas[0].url.removeprefix("http://")
    replicas[0].stop()
    try:
        started = time.monotonic()
        answers = await asyncio.gather(
            *(sdk.chat.completions.with_raw_response.create(**chat(max_tokens=2)) for _ in range(6))
        )
        # Three probes of 2 s each, a second apart, then the answer elsewhere; at three times that.
        assert time.monotonic() - started < 3 * 10
        assert frozen not in {answer.headers["x-hpkv-replica"] for answer in answers}
        assert not up(served, frozen)
        started = time.monotonic()
        await sdk.chat.completions.create(**chat(max_tokens=2))
        assert time.monotonic() - started < 5, "the other's traffic is not slowed"
    finally:
        replicas[0].cont()
    await asyncio.to_thread(until, lambda: up(served, frozen), 20)


def up(served: Serving, name: str) -> bool:
    states = served.client.get("/readyz").json()["replicas"]
    return next(state for state in states if state["name"] == name)["state"] == "up"


def test_drain(served: Serving) -> None:
    # Long enough that the listener is asked many times while the answer is still under way.
    body = {**chat(max_tokens=800), "ignore_eos": True, "stream": True}
    with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        chunks = answer.iter_raw()
        first = next(chunks)
        served.process.terminate()
        refused = threading.Event()

        def ask() -> None:
            with contextlib.suppress(httpx2.TransportError):
                until(lambda: httpx2.get(f"{served.url}/readyz").status_code == 503, 5)
                refused.set()

        asking = threading.Thread(target=ask)
        asking.start()
        rest = first + b"".join(chunks)
        asking.join()
    assert refused.is_set()
    assert rest.endswith(b"data: [DONE]\n\n")
    served.process.wait(10)
