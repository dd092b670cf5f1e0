"""Followed agents, over real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
import zmq.asyncio

from cache.prefix import PrefixKeys
from engine_adapters import wire
from engine_adapters.agent.keys import Keys
from engine_adapters.base import Address, AgentAddress, Engine
from engine_adapters.events import Origin, Tier
from engine_adapters.http import Connection
from gateway.fleet import Replica
from gateway.index import Feed, Index
from gateway.knowledge import agents as module
from gateway.knowledge.agents import Follower
from tests.fakes.agent import PIECE, FakeAgent
from tests.gateway.conftest import until
from tests.gateway.index.engine import Engine as Blocks
from tests.gateway.index.engine import batch

PROMPT = Blocks().prompt(range(100))


class AnEngine:
    kind = "vllm"
    address = Address(cast(Connection, None))


class World:
    """An index, and followers that tell it."""

    def __init__(self) -> None:
        self.index = Index(blocks=4096)
        self.feed = Feed(self.index, asyncio.get_running_loop().time)
        self.context = zmq.asyncio.Context()
        self.tasks = [asyncio.create_task(self.feed.run())]

    def follow(
        self, address: str, name: str = "a", keys: Keys | None = None, shared_pages: int = 1000
    ) -> Follower:
        replica = Replica(name, cast(Engine, AnEngine()))
        origin = Origin(name)
        self.index.attach(origin)
        follower = Follower(
            replica,
            AgentAddress(address, keys),
            self.feed,
            lambda pages, store: self.index.attach(origin, pages=pages, store=store),
            self.context,
            shared_pages=shared_pages,
        )
        self.tasks.append(asyncio.create_task(follower.run()))
        return follower

    async def end(self, *tasks: "asyncio.Task[None]") -> None:
        for task in tasks or self.tasks:
            task.cancel()
        await asyncio.wait(tasks or self.tasks)

    def held(self, name: str = "a", prompt: PrefixKeys = PROMPT) -> list[int]:
        match = self.index.match(prompt)
        tokens: list[int] = match.tokens[match.origins.index(Origin(name))].tolist()
        return tokens


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.05)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.end()
    world.context.term()


MakeAgent = Callable[..., FakeAgent]


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[MakeAgent]:
    agents: list[FakeAgent] = []

    def make(name: str = "a", **settings: int) -> FakeAgent:
        folder = tmp_path / name
        folder.mkdir()
        agents.append(FakeAgent(folder, **settings))
        agents[-1].start()
        return agents[-1]

    yield make
    for agent in agents:
        agent.stop()


Shows = Callable[[list[int]], Awaitable[None]]


@pytest.fixture
def shows(world: World) -> Shows:
    async def shows(tokens: list[int], name: str = "a") -> None:
        await until(lambda: world.held(name) == tokens)

    return shows


async def test_what_lay_there_before_and_what_comes_and_goes(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    agent.store("shared", PROMPT)
    agent.store("ssd", PROMPT, 0, 5)
    agent.store("host", PROMPT, 1, 3)
    agent.publisher.forget()  # so that a snapshot alone can tell
    follower = world.follow(agent.address)
    await shows([0, 32, 48, 16])
    agent.remove("ssd", PROMPT, 0, 1)
    agent.store("host", PROMPT, 5)
    await shows([0, 48, 32, 16])
    assert follower.agent.alive
    assert follower.agent.threshold == 16
    assert follower.agent.rates == {Tier.HOST: 1e6, Tier.SSD: 1e6, Tier.SHARED: 1e6}


async def test_pages_larger_than_the_engines_blocks(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent(page_tokens=48)
    agent.store("ssd", PROMPT)
    world.follow(agent.address)
    await shows([0, 0, 96, 0])
    world.index.push(Origin("a"), [batch([Blocks().stored(range(100), 0, 4)])])
    await until(lambda: world.held() == [64, 0, 32, 0])


async def test_a_restarted_engine_keeps_its_ssd(world: World, make_agent: MakeAgent, shows: Shows) -> None:
    agent = make_agent()
    agent.store("ssd", PROMPT, 0, 4)
    agent.store("host", PROMPT, 4)
    world.follow(agent.address)
    await shows([0, 32, 64, 0])
    agent.restart()
    await shows([0, 0, 64, 0])
    agent.store("host", PROMPT, 4)
    await shows([0, 32, 64, 0])
    agent.pages["ssd"].popitem()  # which nobody tells
    agent.restart()
    await shows([0, 0, 48, 0])


async def test_an_engine_that_is_another_after_its_restart(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    agent.store("ssd", PROMPT)
    follower = world.follow(agent.address)
    await shows([0, 0, 96, 0])
    agent.pages["ssd"].clear()
    agent.identity = msgspec.structs.replace(agent.identity, page_tokens=48, namespace="bb")
    agent.restart()
    agent.store("ssd", PROMPT, 0, 1)
    await shows([0, 0, 48, 0])
    assert follower.agent.economics is not None
    assert follower.agent.economics.page_tokens == 48


async def test_what_an_engine_loads_no_longer_is_forgotten(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    agent.store("ssd", PROMPT, 0, 4)
    agent.store("host", PROMPT, 3, 5)
    agent.store("shared", PROMPT)
    follower = world.follow(agent.address)
    world.index.push(Origin("a"), [batch([Blocks().stored(range(100), 0, 2)])])
    await shows([32, 32, 16, 16])
    idle = {name: wire.TierInfo(capacity_bytes=1 << 30) for name in agent.identity.tiers}
    agent.identity = msgspec.structs.replace(agent.identity, tiers=idle)
    agent.statistics = msgspec.structs.replace(agent.statistics, tiers=idle)
    await shows([32, 0, 0, 64])  # in the store it is, for others
    await until(lambda: follower.agent.alive and not follower.agent.rates)
    asked = len(agent.calls)
    newcomer = world.follow(agent.address, "b")  # which would be told by a replay
    await until(lambda: newcomer.agent.alive and len(agent.calls) > asked + 10)
    assert world.held("b")[1:3] == [0, 0]
    assert newcomer.stream is follower.stream is None


async def test_a_change_between_the_snapshots_of_two_tiers_is_not_missed(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    agent.store("ssd", PROMPT)
    agent.publisher.forget()
    asked: list[wire.TierName] = []

    def behave(call: wire.Call, answers: list[wire.Answer]) -> list[wire.Answer]:
        if isinstance(call, wire.Snapshot):
            asked.append(call.tier)
            if asked.count("ssd") == 1 and call.tier == "ssd":
                agent.remove("ssd", PROMPT, 1, 2)
        return answers

    agent.behave = behave
    world.follow(agent.address)
    await until(lambda: asked == ["shared", "ssd", "host"])
    await shows([0, 0, 16, 0])


async def test_a_gap_that_no_replay_fills_is_told_by_a_snapshot(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    follower = world.follow(agent.address)
    await until(lambda: follower.stream is not None and follower.stream.state.snapshots == 1)
    agent.store("ssd", PROMPT, 0, 1)
    agent.store("ssd", PROMPT, 1, 2)
    await shows([0, 0, 32, 0])
    agent.publisher.withhold(2)
    agent.remove("ssd", PROMPT, 1, 2)
    agent.store("host", PROMPT, 1, 3)
    agent.publisher.forget()
    agent.store("shared", PROMPT, 3)
    await shows([0, 32, 16, 48])


async def test_what_one_replica_put_into_a_store_is_there_for_the_other(
    world: World, make_agent: MakeAgent
) -> None:
    one, other, stranger = make_agent("a"), make_agent("b"), make_agent("c")
    stranger.identity = msgspec.structs.replace(stranger.identity, namespace="bb")
    for name, agent in (("a", one), ("b", other), ("c", stranger)):
        world.follow(agent.address, name)
    await until(lambda: all(len(agent.calls) > 5 for agent in (one, other, stranger)))
    one.store("shared", PROMPT)
    await until(lambda: world.held("b") == [0, 0, 0, 96])
    assert world.held("a") == [0, 0, 0, 96]
    assert world.held("c") == [0, 0, 0, 0]
    other.restart()  # which clears nothing that the first has said
    other.store("ssd", PROMPT, 0, 1)
    await until(lambda: world.held("b") == [0, 0, 16, 80])
    other.publisher.withhold(1)
    other.store("host", PROMPT, 0, 1)
    other.publisher.forget()
    other.store("host", PROMPT, 1, 2)  # a gap that stays; no more does that
    await until(lambda: world.held("b") == [0, 32, 0, 64])
    assert world.held("a") == [0, 0, 0, 96]


async def test_of_a_huge_store_only_so_much_is_taken_in_at_once(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    agent.store("shared", PROMPT)
    agent.store("host", PROMPT, 0, 1)  # which is told after it
    agent.publisher.forget()
    follower = world.follow(agent.address, shared_pages=PIECE)
    await shows([0, 16, 0, 16 * (PIECE - 1)])
    assert follower.agent.alive


async def test_what_lies_on_shared_storage_is_told_again_and_again(
    monkeypatch: pytest.MonkeyPatch, world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    agent.store("shared", PROMPT, 0, 1)
    world.follow(agent.address)
    await shows([0, 0, 0, 16])
    agent.pages["shared"].update(zip(PROMPT.at(16).tolist(), range(16, 97, 16), strict=True))
    monkeypatch.setattr(module, "SHARED_AGAIN_S", 0.2)
    await shows([0, 0, 0, 96])


async def test_tenants_share_nothing(world: World, make_agent: MakeAgent, shows: Shows) -> None:
    agent = make_agent()
    agent.store("host", PROMPT)
    world.follow(agent.address)
    await shows([0, 96, 0, 0])
    assert world.held(prompt=PrefixKeys(range(100), 7)) == [0, 0, 0, 0]


@pytest.mark.parametrize("how", ["gone", "mute"])
async def test_a_lost_agents_tiers_are_forgotten_after_a_while_and_gpu_is_not(
    monkeypatch: pytest.MonkeyPatch, world: World, make_agent: MakeAgent, shows: Shows, how: str
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    agent = make_agent()
    agent.store("host", PROMPT)
    follower = world.follow(agent.address)
    world.index.push(Origin("a"), [batch([Blocks().stored(range(100), 0, 2)])])
    await shows([32, 64, 0, 0])
    if how == "gone":
        agent.stop()
    else:
        agent.behave = lambda call, answers: None
    await shows([32, 0, 0, 0])
    assert not follower.agent.alive
    assert follower.agent.trouble
    assert follower.agent.rates == {}
    if how == "gone":
        agent.start()
    else:
        agent.behave = lambda call, answers: answers
    await shows([32, 64, 0, 0])
    assert follower.agent.alive


async def test_a_pause_of_an_agent_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch, world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    agent = make_agent()
    agent.store("host", PROMPT)
    follower = world.follow(agent.address)
    await shows([0, 96, 0, 0])
    agent.behave = lambda call, answers: None
    asked = len(agent.calls)
    await until(lambda: len(agent.calls) > asked + 3)
    assert world.held() == [0, 96, 0, 0]
    assert follower.agent.alive


async def test_an_agent_that_begins_to_refuse_is_lost_at_once(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    agent.store("host", PROMPT)
    world.follow(agent.address)
    await shows([0, 96, 0, 0])
    began = time.monotonic()
    agent.behave = lambda call, answers: [wire.Refused(code="version", message="not any more")]
    await shows([0, 0, 0, 0])
    assert time.monotonic() - began < module.PATIENCE_S / 2


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("version", "speaks version 9"),
        ("refusal", "not for you"),
        ("engine", "an agent of sglang"),
        ("pages", "a page has 0 tokens"),
    ],
)
async def test_an_agent_that_is_of_no_use_is_named(
    world: World, make_agent: MakeAgent, caplog: pytest.LogCaptureFixture, fault: str, says: str
) -> None:
    agent = make_agent()
    agent.store("host", PROMPT)
    if fault == "version":
        agent.version = 9
    elif fault == "refusal":
        agent.behave = lambda call, answers: [wire.Refused(code="busy", message="not for you")]
    elif fault == "engine":
        agent.identity = msgspec.structs.replace(agent.identity, engine="sglang")
    else:
        agent.identity = msgspec.structs.replace(agent.identity, page_tokens=0)
    follower = world.follow(agent.address)
    await until(lambda: says in follower.agent.trouble)
    await until(lambda: len(agent.calls) > 3)
    assert world.held() == [0, 0, 0, 0]
    told = [record for record in caplog.records if record.message == "no agent"]
    assert len(told) == 1, "once, not each time it is asked"


async def test_a_tier_that_cannot_be_listed_is_learned_from_what_happens(
    world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    agent = make_agent()
    agent.store("shared", PROMPT, 0, 2)
    agent.store("ssd", PROMPT, 0, 1)
    agent.publisher.forget()

    def behave(call: wire.Call, answers: list[wire.Answer]) -> list[wire.Answer]:
        if isinstance(call, wire.Snapshot) and call.tier == "shared":
            return [wire.Refused(code="unsupported", message="it can't be listed")]
        return answers

    agent.behave = behave
    follower = world.follow(agent.address)
    await shows([0, 0, 16, 0])
    agent.store("shared", PROMPT, 0, 2)
    await shows([0, 0, 16, 16])
    assert follower.agent.alive


async def test_a_host_tier_of_the_engines_own_is_not_the_agents_to_tell_of(
    monkeypatch: pytest.MonkeyPatch, world: World, make_agent: MakeAgent, shows: Shows
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    agent = make_agent()
    tiers = {**agent.identity.tiers, "host": wire.TierInfo(capacity_bytes=1 << 30)}
    agent.identity = msgspec.structs.replace(agent.identity, tiers=tiers)
    agent.statistics = msgspec.structs.replace(agent.statistics, tiers=tiers)
    agent.store("ssd", PROMPT)
    follower = world.follow(agent.address)
    world.index.push(Origin("a"), [batch([Blocks().stored(range(100), 0, 2, Tier.HOST)])])
    await shows([0, 32, 64, 0])
    assert Tier.HOST not in follower.agent.rates
    agent.restart()
    await until(lambda: follower.agent.identity is not None and follower.agent.identity.epoch == 2)
    await shows([0, 32, 64, 0])
    agent.stop()
    await shows([0, 32, 0, 0])
    agent.start()
