"""The gateway over real SGLang replicas, with and without SGLang's host tier, and beside one of vLLM."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from tests.e2e.talk import PAGE, Said, Talk, assistant, talking, user
from tests.engines import LORA, MODEL, OTHER_LORA, Replica

pytestmark = pytest.mark.engine

Replicas = tuple[Replica, ...]
TOPICS = ("rivers", "clouds", "trains")


@pytest.fixture
async def talk(sglang_replicas: Replicas, tmp_path: Path) -> AsyncIterator[Talk]:
    for replica in sglang_replicas:
        replica.reset_cache()
    async with talking(sglang_replicas, tmp_path) as one:
        yield one


@pytest.fixture
async def mixed(mixed_replicas: Replicas, tmp_path: Path) -> AsyncIterator[Talk]:
    for replica in mixed_replicas:
        replica.reset_cache()
    async with talking(mixed_replicas, tmp_path) as one:
        yield one


async def conversations(talk: Talk, turns: int) -> dict[str, list[str]]:
    """Chats of several turns, begun at once and then interleaved; where each turn was answered."""
    history = {topic: [user(f"Tell me something about {topic}. " * 50)] for topic in TOPICS}
    homes: dict[str, list[str]] = {topic: [] for topic in TOPICS}

    async def turn(topic: str) -> Said:
        said = await talk.say(history[topic])
        history[topic] += [assistant(said.text), user("What more is there to say? " * 3)]
        homes[topic].append(said.replica)
        return said

    await asyncio.gather(*(turn(topic) for topic in TOPICS))
    talk.prompt = talk.reported = talk.errors = 0
    for _ in range(turns - 1):
        for topic in TOPICS:
            said = await turn(topic)
            assert said.cached >= 8 * PAGE
    return homes


async def test_follow_ups_go_to_the_sglang_replica_that_holds_them(talk: Talk) -> None:
    homes = await conversations(talk, 4)
    assert all(len(set(one)) == 1 for one in homes.values())
    assert len({name for one in homes.values() for name in one}) == 2, "new conversations spread"
    assert talk.errors <= 0.01 * talk.reported
    assert talk.reported >= talk.prompt / 2


async def test_what_the_host_tier_holds_is_known_and_counted_by_source(
    sglang_replicas: Replicas, tmp_path: Path
) -> None:
    *_, tiered = sglang_replicas
    tiered.reset_cache()
    async with talking((tiered,), tmp_path) as one:
        first = user("Which rivers flow to the north? " * 90)
        await one.say([first])
        for i in range(5):  # more than fits into the KV cache
            await one.say([user(f"{i} Say a word about the {i}th bridge. " * 60)])
        said = await one.say([first, assistant("None."), user("More.")], return_cached_tokens_details=True)
        assert said.predicted.get("host", 0) >= 8 * PAGE
        assert said.by_source["host"] == said.predicted["host"]
        assert said.by_source["device"] == said.predicted.get("gpu", 0)
        tiered.reset_cache()
        await one.forget([first])
        said = await one.say([first, assistant("None."), user("More?")])
        assert said.expected == said.cached == 0


async def test_a_killed_sglang_replicas_pages_are_forgotten(talk: Talk, sglang_replicas: Replicas) -> None:
    messages = [user("Name some rivers and say where they flow. " * 40)]
    first = await talk.say(messages)
    home = next(replica for replica in sglang_replicas if replica.name == first.replica)
    await asyncio.to_thread(home.restart)
    await talk.up(2)
    await talk.ready()
    said = await talk.say([*messages, assistant(first.text), user("More.")])
    assert said.expected == said.cached == 0


async def test_a_flush_behind_our_back_misroutes_one_request_at_most(
    talk: Talk, sglang_replicas: Replicas
) -> None:
    messages = [user("Name some bridges and who built them. " * 30)]
    first = await talk.say(messages)
    next(one for one in sglang_replicas if one.name == first.replica).reset_cache()
    wrong = 0
    for i in range(3):
        said = await talk.say([*messages, assistant(first.text), user(f"More {i}.")])
        wrong += said.expected > said.cached
    assert wrong <= 1


async def test_a_new_gateway_finds_what_lies_in_sglang(
    talk: Talk, sglang_replicas: Replicas, tmp_path: Path
) -> None:
    histories = [[user(f"Say something about {topic}. " * 30)] for topic in TOPICS[:2]]
    firsts = [await talk.say(messages) for messages in histories]
    async with talking(sglang_replicas, tmp_path) as again:
        for messages, said in zip(histories, firsts, strict=True):
            await again.hear(messages, said)
            messages += [assistant(said.text), user("Go on.")]
        said_again = [await again.say(messages) for messages in histories]
    assert [said.replica for said in said_again] == [said.replica for said in firsts]
    assert all(said.expected == said.cached > 0 for said in said_again)


async def test_salts_share_nothing_in_sglang(talk: Talk) -> None:
    messages = [user("Tell me about the markets of old towns. " * 30)]
    await talk.say(messages, cache_salt="tenant-a")
    for salt in ("tenant-b", None):
        said = await talk.say(messages, **({"cache_salt": salt} if salt else {}))
        assert said.expected == said.cached == 0
    said = await talk.say(messages, cache_salt="tenant-a")
    assert said.expected == said.cached > 0


BAD: list[tuple[str, dict[str, Any], str | None]] = [
    ("/v1/chat/completions", {"messages": [user("x")], "temperature": -3}, None),
    ("/v1/chat/completions", {"messages": [user("x " * 9000)]}, "context_length_exceeded"),
    ("/v1/chat/completions", {"messages": [user("x " * 9000)], "stream": True}, "context_length_exceeded"),
    ("/v1/chat/completions", {"messages": [user("x")], "max_tokens": 10**6}, "context_length_exceeded"),
    ("/v1/chat/completions", {"messages": [user("x")], "tool_choice": "required"}, None),
    ("/v1/chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, None),
    ("/v1/chat/completions", {"messages": [user("x")], "lora_path": "unknown"}, None),
    ("/v1/completions", {"prompt": ""}, None),
    ("/v1/completions", {"prompt": "x " * 9000}, "context_length_exceeded"),
    ("/v1/responses", {"input": "x " * 9000}, None),
    ("/v1/messages", {"messages": [user("x " * 9000)], "max_tokens": 4}, None),
    ("/v1/embeddings", {"input": "x"}, None),
    ("/v1/rerank", {"query": "x", "documents": ["x"]}, None),
    ("/v1/score", {"text_1": "x", "text_2": "x"}, None),
    ("/tokenize", {}, None),
]


async def test_every_kind_of_error_arrives_in_the_envelope(talk: Talk) -> None:
    for path, body, code in BAD:
        answer = await talk.client.post(path, json={"model": MODEL, **body})
        assert 400 <= answer.status_code < 500, (path, answer.text[:300])
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert code is None or error["code"] == code, error


async def test_the_endpoints_answer_and_streams_come_piece_by_piece(talk: Talk) -> None:
    async with AsyncOpenAI(base_url=f"{talk.url}/v1", api_key="none", max_retries=0) as sdk:
        options = {"include_usage": True}
        stream = await sdk.chat.completions.create(
            model=MODEL, messages=[user("Count to ten.")], max_tokens=12, stream=True, stream_options=options
        )
        chunks = [chunk async for chunk in stream]
        assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 3
        assert chunks[-1].usage is not None
        text = await sdk.completions.create(model=MODEL, prompt="Once upon", max_tokens=4)
        assert text.choices[0].text
        response = await sdk.responses.create(model=MODEL, input="Say hi.", max_output_tokens=8)
        assert response.usage is not None
        assert response.usage.input_tokens > 0
    message = {"model": MODEL, "messages": [user("Say hi.")], "max_tokens": 4}
    answer = await talk.client.post("/v1/messages", json=message)
    assert answer.json()["type"] == "message"
    ids = (await talk.client.post("/tokenize", json={"model": MODEL, "prompt": "Once"})).json()["tokens"]
    assert ids


async def test_a_client_that_leaves_frees_sglang(talk: Talk, sglang_replicas: Replicas) -> None:
    for stream in (True, False):
        body = {"model": MODEL, "messages": [user("Go on for ever.")], "max_tokens": 4000, "ignore_eos": True}
        asked = asyncio.create_task(talk.client.post("/v1/chat/completions", json={**body, "stream": stream}))
        await until(lambda: running(sglang_replicas) == 1)
        asked.cancel()
        await until(lambda: running(sglang_replicas) == 0)


async def test_follow_ups_stay_with_their_engine_in_a_mixed_fleet(mixed: Talk) -> None:
    homes = await conversations(mixed, 3)
    assert all(len(set(one)) == 1 for one in homes.values())
    assert {name for one in homes.values() for name in one} == {"a", "c"}
    assert mixed.errors <= 0.01 * mixed.reported


async def test_a_chat_whose_replica_dies_goes_on_with_the_other_engine(
    mixed: Talk, mixed_replicas: Replicas
) -> None:
    messages = [user("Tell me about the harbours of the south. " * 30)]
    first = await mixed.say(messages)
    home = next(replica for replica in mixed_replicas if replica.name == first.replica)
    await asyncio.to_thread(home.kill)
    messages += [assistant(first.text), user("And the north?")]
    second = await mixed.say(messages)
    assert second.replica != first.replica
    again = await mixed.say([*messages, assistant(second.text), user("And?")])
    assert again.replica == second.replica
    assert again.expected == again.cached > 8 * PAGE


async def test_adapters_a_salt_and_the_base_share_nothing_in_sglang(
    lora_replicas: Replicas, tmp_path: Path
) -> None:
    *_, sglang = lora_replicas
    sglang.reset_cache()
    messages = [user("Tell me about the ferries of old harbours. " * 30)]
    async with talking((sglang,), tmp_path) as talk:
        for fields in ({"model": LORA}, {"model": OTHER_LORA}, {"cache_salt": LORA}, {}):
            first = await talk.say(messages, **fields)
            assert first.expected == first.cached == 0, fields
            again = await talk.say(messages, **fields)
            assert again.expected == again.cached > 8 * PAGE, fields


async def test_an_adapters_follow_ups_go_to_the_engine_that_holds_them(
    lora_replicas: Replicas, tmp_path: Path
) -> None:
    for replica in lora_replicas:
        replica.reset_cache()
    histories = [[user(f"Tell me something about {topic}. " * 30)] for topic in TOPICS[:2]]
    async with talking(lora_replicas, tmp_path) as talk:
        firsts = await asyncio.gather(*(talk.say(messages, model=LORA) for messages in histories))
        assert {first.replica for first in firsts} == {"e", "f"}, "new conversations spread"
        for messages, first in zip(histories, firsts, strict=True):
            messages += [assistant(first.text), user("And more?")]
            for fields in ({"model": OTHER_LORA}, {}):
                other = await talk.say(messages, **fields)
                assert other.expected == other.cached <= PAGE  # of the system's own prompt
            again = await talk.say(messages, model=LORA)
            assert again.replica == first.replica
            assert again.expected == again.cached > 8 * PAGE


def running(replicas: Replicas) -> int:
    pages = [httpx2.get(f"{r.url}/v1/loads?include=core", timeout=10).json()["loads"] for r in replicas]
    return sum(int(load["num_running_reqs"]) for loads in pages for load in loads)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.1)
