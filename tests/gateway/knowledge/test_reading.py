import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from engine_adapters.base import Engine, ModelCard
from gateway.fleet import Replica
from gateway.knowledge.reading import Reading
from gateway.tokenization import EncodePool, EngineCall, ModelTokenizer
from tests.gateway.conftest import until
from tests.gateway.tokenization import families
from tests.gateway.tokenization.fake_front_end import FrontEnd


async def test_a_loader_that_fails_unforeseen_is_told() -> None:
    async def opener(call: EngineCall) -> ModelTokenizer:
        raise KeyError("somewhere deep inside")

    reading = Reading("m")
    reading.open(opener)
    async with asyncio.timeout(5):
        while not reading.settled:
            await asyncio.sleep(0)
    assert reading.verdict() == "the tokenizer can't be loaded: KeyError"


class Tokenizing:
    """An engine that tells how it reads prompts."""

    def __init__(self, model: ModelTokenizer) -> None:
        self.connection = self
        self.front_end = FrontEnd(model)

    async def fetch(self, path: str, body: bytes, **_: Any) -> tuple[int, bytes]:
        return 200, orjson.dumps(await self.front_end(path, orjson.loads(body)))

    @property
    def asked(self) -> int:
        return len(self.front_end.asked)


Open = Callable[..., Awaitable[ModelTokenizer]]


@pytest.fixture
async def open_model(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens one of two models."""
    pool = EncodePool(workers=2, max_wait_s=5.0)
    made = {
        name: families.save(tmp_path / name, families.SEGMENTED["prefix_space"](), template)
        for name, template in (("plain", families.CHATML), ("rich", families.RICH))
    }

    async def opened(name: str, call: EngineCall | None = None) -> ModelTokenizer:
        return await ModelTokenizer.open(made[name], engine="vllm", pool=pool, call=call)

    yield opened
    pool.close()


async def test_all_is_compared_once_and_a_few_show_that_others_read_alike(open_model: Open) -> None:
    alike, other = await open_model("rich"), await open_model("plain")
    first, second, third, last = (Tokenizing(model) for model in (alike, alike, alike, other))
    reading = Reading("m")
    replicas = {}

    async def join(name: str, engine: Tokenizing) -> None:
        replicas[name] = Replica(name, cast(Engine, engine))
        replicas[name].rise([ModelCard("m", "/m", None, None, {})])
        reading.join(replicas[name])

    reading.open(lambda call: open_model("rich", call))
    await join("a", first)
    await join("b", second)  # while the tokenizer is being loaded
    await until(lambda: reading.settled)
    assert reading.verdict() == "agrees"
    whole = first.asked
    assert whole > 25
    assert 1 < second.asked < 5
    await join("c", third)
    await until(lambda: reading.settled)
    assert (reading.verdict(), first.asked, second.asked) == ("agrees", whole, third.asked)
    await join("d", last)
    await until(lambda: reading.settled)
    assert reading.verdict() == "disagrees"
    assert last.asked > 25
    reading.leave(replicas["d"])
    again = Tokenizing(alike)
    await join("d", again)  # started anew, as the others are
    await until(lambda: reading.settled)
    assert reading.verdict() == "agrees"
    assert again.asked > 25
    await reading.close()
