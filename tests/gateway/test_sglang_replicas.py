"""SGLang replicas, alone and beside vLLM's, as fakes with real events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import JSONResponse, Response

from tests.fakes.byte_model import save_byte_model
from tests.fakes.engine import FakeEngine
from tests.fakes.sglang import FakeSglang
from tests.gateway.conftest import FAST, Running, chat, running, until

LONG = "Tell me all that you know about the rivers of the north. " * 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_model(tmp_path_factory.mktemp("model"))


class FakeVllm(FakeEngine):
    """A fake that doesn't tokenize for others, and says so once for all: it knows no template options."""

    async def _answer(self, request: Any) -> Any:
        if request.path == "/tokenize" or request.path.endswith("/render"):
            return JSONResponse({"detail": "Forbidden"}, 403)
        return await super()._answer(request)


class FakeSglangThatIsWell(FakeSglang):
    """A real one answers `/health`, too."""

    async def _answer(self, request: Any) -> Any:
        if request.path == "/health":
            return Response(status_code=self.faults.health_status)
        return await super()._answer(request)


def turns(contents: tuple[str, ...]) -> list[dict[str, str]]:
    """Of user and assistant by turns."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


class Fleet:
    """Fakes of both kinds, and a gateway before them that knows their prompts."""

    def __init__(self, engines: list[FakeEngine], served: Running) -> None:
        self.engines = engines
        self.served = served

    async def say(self, *contents: str, **fields: Any) -> httpx2.Response:
        """A chat of user and assistant turns."""
        messages = [
            {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)
        ]
        body = {"model": "fake", "max_tokens": 8, **fields, "messages": messages}
        answer = await self.served.client.post("/v1/chat/completions", json=body)
        await asyncio.sleep(0.05)
        (model,) = self.served.gateway.knowledge
        await until(lambda: model.feed.backlog == 0)
        return answer

    async def explained(self, *contents: str) -> dict[str, int]:
        """What the gateway expects on each replica, without asking any."""
        messages = [
            {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)
        ]
        told = await self.served.client.post("/v1/route", json={"model": "fake", "messages": messages})
        return {one["replica"]: one["cached_tokens"]["gpu"] for one in told.json()["candidates"]}


@contextlib.asynccontextmanager
async def fleet(folder: Path, *engines: FakeEngine) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            engine.speed.prefill_tokens_per_s = 20_000
            await stack.enter_async_context(engine)
            if isinstance(engine, FakeSglang):
                engine.source = str(folder)
        replicas = [
            {"url": engine.url, "name": f"{'s' if isinstance(engine, FakeSglang) else 'v'}{i}"}
            | {"engine": "sglang" if isinstance(engine, FakeSglang) else "vllm"}
            | {"events": engine.publisher.endpoint, "replay": engine.publisher.replay_endpoint}
            for i, engine in enumerate(engines)
            if engine.publisher
        ]
        # SGLang's card names the folder; the fake vLLM's doesn't.
        kinds = {replica["engine"] for replica in replicas}
        models = {"models": {"fake": {"tokenizer": str(folder)}}} if "vllm" in kinds else {}
        flags = {**FAST, "log": {"requests": False}, "replicas": replicas, **models}
        served = await stack.enter_async_context(running(flags))
        (model,) = served.gateway.knowledge
        await until(lambda: {kind for kind, _ in model.tokenizers()} == kinds, 20)
        yield Fleet(list(engines), served)


def home(answer: httpx2.Response) -> str:
    return answer.headers["x-hpkv-replica"]


def tokens(answer: httpx2.Response) -> tuple[int, int]:
    """Predicted and reported."""
    reported = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return int(answer.headers["x-hpkv-cached-tokens"].removeprefix("gpu=")), reported


@pytest.mark.parametrize("kinds", [(FakeSglang, FakeSglang), (FakeVllm, FakeSglang)])
async def test_follow_ups_go_to_the_replica_that_holds_them(
    folder: Path, kinds: tuple[type[FakeEngine], ...]
) -> None:
    async with fleet(folder, *(kind(events=True) for kind in kinds)) as f:
        homes: dict[int, set[str]] = {i: set() for i in range(4)}
        histories: dict[int, list[str]] = {i: [f"{i} {LONG}"] for i in homes}
        for turn in range(3):
            for i, history in histories.items():
                answer = await f.say(*history)
                history += [answer.json()["choices"][0]["message"]["content"], "And then?"]
                homes[i].add(home(answer))
                predicted, reported = tokens(answer)
                assert predicted == reported
                assert bool(reported) == bool(turn)
    assert all(len(one) == 1 for one in homes.values())
    assert len(set.union(*homes.values())) == 2


async def test_salts_and_adapters_share_nothing(folder: Path) -> None:
    async with fleet(folder, FakeSglang(events=True, loras=["tuned"])) as f:
        for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"model": "tuned"}):
            assert tokens(await f.say(LONG, **fields)) == (0, 0)
            predicted, reported = tokens(await f.say(LONG, **fields))
            assert predicted == reported > 0
        sent = f.engines[0].requests("/v1/chat/completions")[-1]
        assert (sent.json["model"], sent.json["lora_path"]) == ("tuned", "tuned")
        unknown = {"model": "fake", "prompt": [5, 258], "max_tokens": 1}
        refused = await f.served.client.post("/v1/completions", json=unknown)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
        assert not f.engines[0].requests("/v1/completions"), "it would end SGLang"
        answer = await f.say(LONG, extra_key="its events do not tell of it")
        assert answer.headers["x-hpkv-cached-tokens"] == "gpu=0"


async def test_what_its_stream_lost_is_replayed(folder: Path) -> None:
    async with fleet(folder, FakeSglang(events=True)) as f:
        publisher = f.engines[0].publisher
        assert publisher is not None
        publisher.withhold(1)
        # Past the gateway: what it sends itself, it predicts.
        async with httpx2.AsyncClient(base_url=f.engines[0].url) as direct:
            for text in (LONG, "Something else entirely, long enough for a block or two."):
                body = {"model": "fake", "max_tokens": 1, "messages": turns((text,))}
                assert (await direct.post("/v1/chat/completions", json=body)).status_code == 200
        async with asyncio.timeout(10):
            while (await f.explained(LONG))["s0"] < 300:
                await asyncio.sleep(0.02)


async def test_each_kind_has_its_own_prompt_where_they_read_a_chat_otherwise(folder: Path) -> None:
    """A last message of the assistant is the user's to SGLang, and opens another turn in vLLM."""
    async with fleet(folder, FakeVllm(events=True), FakeSglang(events=True)) as f:
        ending = (LONG, "It is long.")
        told = await f.explained(*ending)
        assert told == {"v0": 0, "s1": 0}
        as_user = [{"role": "user", "content": text} for text in ending]
        body = {"model": "fake", "max_tokens": 1, "messages": as_user}
        for engine in f.engines:
            async with httpx2.AsyncClient(base_url=engine.url) as direct:
                assert (await direct.post("/v1/chat/completions", json=body)).status_code == 200
        (model,) = f.served.gateway.knowledge
        await until(lambda: model.feed.backlog == 0 and model.index.state().blocks > 0)

        async def differ() -> bool:
            told = await f.explained(*ending)
            return told["s1"] > told["v0"] > 0

        async with asyncio.timeout(5):
            while not await differ():
                await asyncio.sleep(0.02)


async def test_a_chat_goes_on_with_the_other_engine_when_its_replica_dies(folder: Path) -> None:
    async with fleet(folder, FakeVllm(events=True), FakeSglang(events=True)) as f:
        first = await f.say(LONG)
        dead = int(home(first)[1:])
        await asyncio.to_thread(f.engines[dead].stop)
        history = [LONG, first.json()["choices"][0]["message"]["content"], "And then?"]
        second = await f.say(*history)
        assert second.status_code == 200
        assert home(second) != home(first)
        predicted, reported = tokens(await f.say(*history))
        assert predicted == reported > 0
        await asyncio.to_thread(f.engines[dead].start)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (chat("x" * 9000), "input_tokens", "context_length_exceeded"),
        (chat(lora_path="unknown"), None, None),
    ],
)
async def test_flat_errors_arrive_in_the_envelope(body: Any, param: str | None, code: str | None) -> None:
    async with FakeSglang() as engine:
        flags = {**FAST, "replicas": [f"sglang+{engine.url}"]}
        async with running(flags) as served:
            answer = await served.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["code"]) == (param, code)


async def test_a_client_that_leaves_frees_sglang() -> None:
    async with FakeSglang() as engine:
        engine.speed.decode_interval_s = 0.01
        async with running({**FAST, "replicas": [f"sglang+{engine.url}"]}) as served:
            body = chat(max_tokens=5000, stream=True)
            async with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                await anext(answer.aiter_bytes())
            await until(
                lambda: engine.received[-1].aborted or engine.requests("/v1/chat/completions")[-1].aborted
            )


@pytest.mark.parametrize(
    ("kind", "fake", "right"),
    [("sglang", FakeEngine, "vllm"), ("vllm", FakeSglangThatIsWell, "sglang")],
)
async def test_an_engine_of_the_other_kind_is_told_by_its_models(
    kind: str, fake: type[FakeEngine], right: str
) -> None:
    async with fake() as engine, running({**FAST, "replicas": [f"{kind}+{engine.url}"]}) as served:
        (replica,) = served.gateway.fleet
        await until(lambda: "engine of the kind" in replica.reason)
        assert f"`engine: {right}`" in replica.reason
        assert not replica.up


def test_a_kind_before_the_url_names_the_engine() -> None:
    from gateway.settings import load_settings

    settings = load_settings(flags={"replicas": ["http://a:1", "sglang+http://b:2/x"]}, environ={})
    assert [(r.name, r.engine) for r in settings.replicas] == [("a:1", "vllm"), ("b:2", "sglang")]
