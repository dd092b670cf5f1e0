"""What is ordered ahead of a request, and what becomes of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import zmq.asyncio
from prometheus_client import CollectorRegistry

from cache.prefix import PrefixKeys
from engine_adapters import wire
from engine_adapters.agent.client import AgentClient
from engine_adapters.base import Engine, ModelCard
from gateway.fleet import Agent, Replica
from gateway.prefetch import Prefetch, Prefetcher
from gateway.prefetch import requests as module
from gateway.prefetch.metrics import PrefetchMetrics, by_tier
from gateway.routing import Candidate, Prompt, RequestContext
from tests.fakes.agent import FakeAgent
from tests.gateway.conftest import until

PROMPT = PrefixKeys(range(1000), 0)


class Silent:
    kind = "vllm"


class World:
    """One replica with an agent whose tiers are told what they have."""

    def __init__(self, fake: FakeAgent, client: AgentClient) -> None:
        self.fake = fake
        self.registry = CollectorRegistry()
        self.absent: list[int] = []
        self.prefetcher = Prefetcher(
            lambda context, replica, at: self.absent.append(at), PrefetchMetrics(self.registry), active=True
        )
        self.replica = Replica("r", cast(Engine, Silent()))
        self.replica.rise([ModelCard("m", None, None, None, {}), ModelCard("l", None, "m", None, {})])
        self.replica.agent = Agent("r", client)
        self.replica.agent.answered(fake.identity, fake.statistics)
        self.order = wire.Order(ticket=7, spans=[wire.Span("ssd", 320), wire.Span("shared", 800)], cut=640)
        self.progress = wire.Progress(tokens=640, loaded=640, running=False)
        fake.behave = self._behave

    def _behave(self, call: wire.Call, answers: list[wire.Answer]) -> list[wire.Answer] | None:
        if isinstance(call, wire.Prefetch):
            return [self.order]
        return [self.progress] if isinstance(call, wire.Cancel) else answers

    def begin(self, *cached: int, model: str = "m", **body: Any) -> Prefetch:
        tiers = cast("tuple[int, int, int, int]", cached or (16, 0, 304, 480))
        context = RequestContext("id", "/", model, body, Prompt(1000, PROMPT))
        return self.prefetcher.begin(context, Candidate(self.replica, tiers, tiers, 1, 0, 0, 0, 0))

    def calls(self, kind: type[wire.Call]) -> list[Any]:
        return [call for call in self.fake.calls if isinstance(call, kind)]

    def count(self, outcome: str) -> float:
        labels = {"replica": "r", "outcome": outcome}
        return self.registry.get_sample_value("hpkv_gateway_prefetches_ended_total", labels) or 0.0

    def total(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"hpkv_gateway_{name}_total", {"replica": "r", **labels}) or 0.0


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path)
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
async def world(fake: FakeAgent) -> AsyncIterator[World]:
    context = zmq.asyncio.Context()
    async with AgentClient(fake.address, context) as client:
        await client.hello()
        world = World(fake, client)
        yield world
        await world.prefetcher.close()
    context.term()


async def test_the_prompt_is_ordered_as_its_request_will_ask_for_it(world: World) -> None:
    prefetch = world.begin(16, 0, 304, 480, model="l", cache_salt="tenant")
    await until(lambda: bool(world.calls(wire.Prefetch)))
    (call,) = world.calls(wire.Prefetch)
    assert wire.tokens_of(call.tokens).tolist() == list(range(1000))
    assert (call.salt, call.lora, call.computed) == ("tenant", "l", 16)
    assert 0 < call.seconds <= 60
    prefetch.end()


@pytest.mark.parametrize(
    ("loaded", "running", "taken", "outcome"),
    [
        (640, False, True, "useful"),
        (320, True, True, "late"),
        (0, False, True, "missed"),
        (640, False, False, "wasted"),
        (0, True, False, "wasted"),
    ],
)
async def test_what_became_of_it_is_told_when_its_request_has_come_or_gone(
    world: World, loaded: int, running: bool, taken: bool, outcome: str
) -> None:
    world.progress = wire.Progress(tokens=640, loaded=loaded, running=running)
    prefetch = world.begin()
    await until(lambda: bool(world.calls(wire.Prefetch)))
    await asyncio.sleep(0.05)
    assert not world.calls(wire.Cancel), "its pages are kept until then"
    if taken:
        prefetch.first_chunk()
    prefetch.end()
    await until(lambda: world.count(outcome) == 1)
    assert [call.ticket for call in world.calls(wire.Cancel)] == [7]
    assert world.total("prefetches") == 1
    assert world.total("prefetch_tokens", tier="ssd") == 304
    assert world.total("prefetch_tokens", tier="shared") == 320, "up to the cut"
    assert world.total("prefetch_loaded_tokens") == loaded


async def test_an_order_whose_request_is_over_before_the_answer_is_given_up(world: World) -> None:
    world.begin().end()
    await until(lambda: world.count("wasted") == 1)
    assert [call.ticket for call in world.calls(wire.Cancel)] == [7]


@pytest.mark.parametrize("cached", [(800, 0, 0, 0), (16, 784, 0, 0), (0, 0, 0, 0)])
async def test_a_request_that_needs_nothing_from_below_host_orders_nothing(
    world: World, cached: tuple[int, ...]
) -> None:
    assert not world.begin(*cached).ordered
    assert world.begin().ordered, "(which the others do)"


async def test_a_host_tier_that_is_the_engines_own_counts_as_computed(world: World) -> None:
    tiers = {name: info for name, info in world.fake.statistics.tiers.items() if name != "host"}
    statistics = msgspec.structs.replace(world.fake.statistics, tiers=tiers)
    assert world.replica.agent is not None
    world.replica.agent.answered(world.fake.identity, statistics)
    world.begin(16, 64, 240, 480).end()
    await until(lambda: bool(world.calls(wire.Prefetch)))
    assert world.calls(wire.Prefetch)[0].computed == 80


async def test_without_an_agent_or_when_turned_off_nothing_is_ordered(world: World) -> None:
    world.prefetcher._active = False
    assert not world.begin().ordered
    world.prefetcher._active = True
    assert world.replica.agent is not None
    world.replica.agent.lose("mute")
    assert not world.begin().ordered
    world.replica.agent = None
    assert not world.begin().ordered


async def test_a_hint_that_was_wrong_is_corrected(world: World) -> None:
    world.order = wire.Order(ticket=0, spans=[wire.Span("ssd", 320), wire.Span("shared", 400)], cut=16)
    world.begin()
    await until(lambda: world.count("missed") == 1)
    assert world.absent == [400]
    world.order = wire.Order(ticket=0, spans=[], cut=16)
    world.begin(24, 0, 0, 776)
    await until(lambda: world.count("missed") == 2)
    assert world.absent == [400, 16], "nothing was there from the first page on"
    assert not world.calls(wire.Cancel)


async def test_silence_corrects_nothing(world: World) -> None:
    world.order = wire.Order(ticket=0, spans=[wire.Span("ssd", 320)], cut=16, complete=False)
    world.begin()
    await until(lambda: world.count("missed") == 1)
    assert world.absent == []


async def test_what_an_agent_has_as_foretold_corrects_nothing(world: World) -> None:
    world.begin().end()
    await until(lambda: world.count("wasted") == 1)
    assert world.absent == []


async def test_a_mute_agent_costs_a_bounded_number_of_orders(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    world.fake.behave = lambda call, answers: None
    begun = [world.begin() for _ in range(module.MOST_OPEN + 10)]
    assert sum(prefetch.ordered for prefetch in begun) == module.MOST_OPEN
    assert world.count("skipped") == 10
    for prefetch in begun:
        prefetch.end()
    await until(lambda: world.count("failed") == module.MOST_OPEN)
    assert not world.prefetcher._open
    assert world.begin().ordered


async def test_a_refusal_is_a_failure_and_no_more(world: World) -> None:
    refusal: Callable[..., list[wire.Answer]] = lambda call, answers: [  # noqa: E731
        wire.Refused(code="busy", message="full")
    ]
    world.fake.behave = refusal
    world.begin()
    await until(lambda: world.count("failed") == 1)


def test_tokens_by_tier() -> None:
    spans = [wire.Span("host", 64), wire.Span("shared", 128), wire.Span("host", 256)]
    assert by_tier(spans, 32, 256) == {"host": 160, "shared": 64}
    assert by_tier(spans, 32, 96) == {"host": 32, "shared": 32}
    assert by_tier([], 32, 96) == {}
