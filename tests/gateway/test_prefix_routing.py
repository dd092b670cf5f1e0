"""Requests go where their prefix lies: fakes with real events, and symptoms from the field."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import JSONResponse

from tests.fakes.byte_model import save_byte_model
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import FAST, Running, chat, running, until

SYSTEM = "You are the assistant of a large company and follow all of its many rules. " * 11
"""Some 800 tokens, a byte each."""


class Engine(FakeEngine):
    """A fake that doesn't tokenize for others, and says so once for all: it knows no template options."""

    async def _answer(self, request: Any) -> Any:
        if request.path == "/tokenize" or request.path.endswith("/render"):
            return JSONResponse({"detail": "Forbidden"}, 403)
        return await super()._answer(request)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_model(tmp_path_factory.mktemp("model"))


class World:
    """Fakes and a gateway before them."""

    def __init__(self, engines: list[Engine], served: Running) -> None:
        self.engines = engines
        self.served = served

    async def say(self, *contents: str, system: str = "", **fields: Any) -> httpx2.Response:
        """A chat of user and assistant turns."""
        roles = ("user", "assistant")
        messages = [{"role": "system", "content": system}] if system else []
        messages += [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
        body = {"model": "fake", "max_tokens": 8, **fields, "messages": messages}
        answer = await self.served.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        await self.settle()
        return answer

    async def settle(self) -> None:
        """Let the engines come to rest, and all that they have sent arrive and be applied."""
        (model,) = self.served.gateway.knowledge
        await until(lambda: not any(engine.running for engine in self.engines))
        await until(lambda: all(map(self._heard, range(len(self.engines)))))
        await until(lambda: model.feed.backlog == 0)

    def _heard(self, number: int) -> bool:
        publisher = self.engines[number].publisher
        (model,) = self.served.gateway.knowledge
        stream = model.streams().get(f"replica-{number}")
        return publisher is None or stream is None or stream.state.sequence >= publisher.sent


def replica(answer: httpx2.Response) -> str:
    return answer.headers["x-hpkv-replica"]


def predicted(answer: httpx2.Response) -> int:
    gpu = answer.headers["x-hpkv-cached-tokens"]
    return int(gpu.removeprefix("gpu="))


def cached(answer: httpx2.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@contextlib.asynccontextmanager
async def world(
    folder: Path, count: int = 2, *, events: bool = True, engines: list[Engine] | None = None, **sections: Any
) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        if engines is None:
            engines = [Engine(events=events) for _ in range(count)]
            for engine in engines:
                engine.speed.prefill_tokens_per_s = 20_000
                await stack.enter_async_context(engine)
        replicas = [
            {"url": engine.url, "name": f"replica-{i}"}
            | ({"events": p.endpoint, "replay": p.replay_endpoint} if (p := engine.publisher) else {})
            for i, engine in enumerate(engines)
        ]
        flags = {
            **FAST,
            "log": {"requests": False},
            "replicas": replicas,
            "models": {"fake": {"tokenizer": str(folder)}},
            **sections,
        }
        served = await stack.enter_async_context(running(flags))
        (model,) = served.gateway.knowledge
        await until(lambda: any(model.tokenizers()), 20)
        await until(lambda: all(stream.state.connected for stream in model.streams().values()))
        yield World(engines, served)


async def test_follow_ups_go_to_the_replica_that_holds_them(folder: Path) -> None:
    async with world(folder) as w:
        history: dict[str, list[str]] = {f"chat {i} " + "word " * 60: [] for i in range(6)}
        homes: dict[str, set[str]] = {name: set() for name in history}
        errors = reported = 0
        for turn in range(4):
            for name, turns in history.items():
                turns.append(f"{name} turn {turn}")
                answer = await w.say(*turns)
                turns.append(answer.json()["choices"][0]["message"]["content"])
                homes[name].add(replica(answer))
                errors += abs(predicted(answer) - cached(answer))
                reported += cached(answer)
        assert all(len(home) == 1 for home in homes.values())
        assert set.union(*homes.values()) == {"replica-0", "replica-1"}, "and they spread over the replicas"
        assert reported > 0
        assert errors <= 0.01 * reported


@pytest.mark.parametrize(("policy", "most"), [("ttft", 2), ("round_robin", 4)])
async def test_siblings_of_one_burst_race(folder: Path, policy: str, most: int) -> None:
    """They meet where the first one went; `round_robin` shows that the test can tell."""
    flags = {"routing": {"policy": policy}} if policy != "round_robin" else {}
    async with world(folder, 4, **flags) as w:
        if policy == "round_robin":
            w.served.gateway.dispatcher._policy = create_round_robin()
        body = {"model": "fake", "max_tokens": 4, "stream": True}
        system = {"role": "system", "content": SYSTEM}

        async def one(i: int) -> str:
            messages = [system, {"role": "user", "content": f"question {i}"}]
            answer = await w.served.client.post("/v1/chat/completions", json={**body, "messages": messages})
            return replica(answer)

        used = set(await asyncio.gather(*(one(i) for i in range(16))))
        prefilled = sum(engine.cache.queries - engine.cache.hits > 700 for engine in w.engines)
    assert len(used) <= most
    assert prefilled <= most
    if policy == "round_robin":
        assert len(used) > 2


def create_round_robin() -> Any:
    from gateway.routing import create_policy

    return create_policy("round_robin")


async def test_a_restarted_engines_blocks_are_forgotten(folder: Path) -> None:
    async with world(folder) as w:
        first = await w.say(SYSTEM)
        home = int(replica(first)[-1])
        assert predicted(await w.say(SYSTEM + "again")) > 700
        died = w.served.gateway.fleet[replica(first)]
        await asyncio.to_thread(w.engines[home].stop)
        await until(lambda: not died.up)
        await asyncio.to_thread(w.engines[home].restart)
        await until(lambda: died.up)
        async with asyncio.timeout(20):
            while await held(w, replica(first), SYSTEM):
                await asyncio.sleep(0.01)


async def test_all_blocks_cleared_costs_at_most_one_misrouted_request(folder: Path) -> None:
    async with world(folder) as w:
        await w.say(SYSTEM)
        for engine in w.engines:
            engine.reset_prefix_cache()
        answers = [await w.say(f"{SYSTEM} after {i}") for i in range(3)]
        wrong = [predicted(answer) > cached(answer) for answer in answers]
        assert sum(wrong) <= 1


async def test_a_new_gateway_does_not_start_cold(folder: Path) -> None:
    async with world(folder) as w:
        first = await w.say(SYSTEM)
        async with world(folder, engines=w.engines) as restarted:
            await restarted.settle()
            again = await restarted.say(SYSTEM, "answer", "next")
            assert replica(again) == replica(first)
            assert predicted(again) == cached(again) > 700


async def test_salts_and_loras_share_nothing(folder: Path) -> None:
    engines = [Engine(events=True, loras=["tenant"])]
    async with engines[0], world(folder, engines=engines) as w:
        await w.say(SYSTEM, cache_salt="tenant")
        for fields in ({}, {"cache_salt": "other"}, {"model": "tenant"}):
            assert predicted(await w.say(SYSTEM, **fields)) == 0, fields
        again = await w.say(SYSTEM, cache_salt="tenant")
        assert predicted(again) == cached(again) > 700


async def test_without_events_history_stands_in(folder: Path) -> None:
    async with world(folder, events=False) as w:
        answers = [await w.say(*[SYSTEM, "a", "b", "c", "d"][: 2 * i + 1]) for i in range(3)]
        assert len({replica(answer) for answer in answers}) == 1
        assert predicted(answers[2]) > 700


async def test_publishers_missing_silently_are_seen(folder: Path) -> None:
    async with world(folder, prefix={"index_blocks": 1 << 14, "silent_s": 0.2}) as w:
        for engine in w.engines:
            assert engine.publisher is not None
            engine.publisher.muted = True
        await w.say(SYSTEM)
        async with asyncio.timeout(10):
            while not (await warnings(w)):
                await asyncio.sleep(0.1)
                await w.say(SYSTEM + "more")
        page = (await w.served.client.get("/metrics")).text
        assert "hpkv_index_silent_replica{" in page


async def held(w: World, name: str, content: str) -> int:
    """Tokens of a chat that the gateway believes to lie on a replica."""
    route = await w.served.client.post("/v1/route", json=chat(content))
    tokens = {c["replica"]: c["cached_tokens"]["gpu"] for c in route.json()["candidates"]}
    return int(tokens[name])


async def test_an_endpoint_that_nobody_serves_is_seen(folder: Path) -> None:
    async with Engine(events=False) as engine:
        replicas = [{"url": engine.url, "name": "r", "events": "ipc:///nowhere/events"}]
        flags = {**FAST, "replicas": replicas, "models": {"fake": {"tokenizer": str(folder)}}}
        async with running(flags) as served:
            ready = (await served.client.get("/readyz")).json()
            assert ready["models"][0]["warnings"] == ["r: no connection to its KV events"]
            page = (await served.client.get("/metrics")).text
            assert 'hpkv_events_connected{replica="r"} 0.0' in page
            assert (await served.chat(max_tokens=1)).status_code == 200


async def warnings(w: World) -> list[str]:
    (model,) = (await w.served.client.get("/readyz")).json()["models"]
    return list(model["warnings"])


async def test_a_sequence_gap_is_replayed(folder: Path) -> None:
    async with world(folder, 1) as w:
        publisher = w.engines[0].publisher
        assert publisher is not None
        publisher.withhold(1)
        # Past the gateway: what it sends itself, it predicts.
        async with httpx2.AsyncClient(base_url=w.engines[0].url) as direct:
            for text in (SYSTEM, "something else entirely, which is long enough for a block or two"):
                assert (await direct.post("/v1/chat/completions", json=chat(text))).status_code == 200
        await w.settle()
        answer = await w.say(SYSTEM, "and", "on")
        assert predicted(answer) == cached(answer) > 700


async def test_a_removed_endpoints_entries_are_not_kept(folder: Path) -> None:
    async with world(folder) as w:
        first = await w.say(SYSTEM)
        home = int(replica(first)[-1])
        await asyncio.to_thread(w.engines[home].stop)
        await until(lambda: not w.served.gateway.fleet[replica(first)].up)
        answer = await w.say(SYSTEM)
        assert replica(answer) != replica(first)
        assert predicted(answer) == 0
        await asyncio.to_thread(w.engines[home].start)


async def test_a_tokenizer_that_cannot_be_loaded_is_named(folder: Path) -> None:
    engine = Engine(events=True)
    async with engine:
        flags = {**FAST, "replicas": [engine.url], "models": {"fake": {"tokenizer": "/nowhere"}}}
        async with running(flags) as served:
            (model,) = served.gateway.knowledge
            await until(lambda: model.settled, 20)
            answer = await served.client.post("/v1/chat/completions", json=chat(max_tokens=2))
            assert answer.status_code == 200
            ready = (await served.client.get("/readyz")).json()
            assert "/nowhere" in ready["models"][0]["prefixes"]
            assert ready["models"][0]["settled"] is True
            page = (await served.client.get("/metrics")).text
    assert 'hpkv_tokenization_unknown_prompts_total{model="fake",reason="no_tokenizer"} 1.0' in page


async def test_a_model_that_disagrees_is_routed_without_prefixes(folder: Path) -> None:
    """The gateway's template isn't the engine's: noticed at start, named, and not used."""
    engine = FakeEngine(events=True)
    async with engine:
        settings = {"tokenizer": str(folder), "chat_template": str(folder / "other.jinja")}
        (folder / "other.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        flags = {**FAST, "replicas": [engine.url], "models": {"fake": settings}}
        async with running(flags) as served:
            (model,) = served.gateway.knowledge
            await until(lambda: any(model.tokenizers()), 20)
            assert (await served.client.get("/readyz")).json()["models"][0]["prefixes"] == "disagrees"
            await served.client.post("/v1/chat/completions", json=chat(max_tokens=2))
            page = (await served.client.get("/metrics")).text
    assert 'hpkv_tokenization_parity{engine="vllm",model="fake",verdict="disagrees"} 1.0' in page
    assert 'reason="disagrees"} 1.0' in page


async def test_all_traffic_on_one_because_load_is_not_tracked(folder: Path) -> None:
    """A popular prefix doesn't draw everything to one replica once its queue is long."""
    async with world(folder) as w:
        for engine in w.engines:
            engine.speed.prefill_tokens_per_s = 2000
        await w.say(SYSTEM)
        others = [w.served.chat(f"{i} " + "unrelated " * 80, max_tokens=2, stream=True) for i in range(12)]
        spread = Counter(replica(answer) for answer in await asyncio.gather(*others))
    assert min(spread.values()) >= 4
