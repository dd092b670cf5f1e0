"""The agents that engines have, over real tiers: what a gateway knows of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cache.prefix import PrefixKeys, seed
from cache.stores import Settings, SharedStore, open_store
from cache.testing import PAGE_BYTES
from cache.tiers.base import Tier as CacheTier
from engine_adapters.agent import keys
from engine_adapters.agent.base import Facts
from engine_adapters.agent.keys import Keys
from engine_adapters.agent.server import Agent
from engine_adapters.settings import AgentSettings, PinSettings
from gateway.knowledge import agents as module
from gateway.routing import Held
from gateway.routing.loading import estimate
from tests.cache.build import rig
from tests.engine_adapters.agent.build import Naming, Served, tokens
from tests.gateway.conftest import until
from tests.gateway.knowledge.test_agents import AnEngine, World, quick, world

__all__ = ["quick", "world"]

SIX = tokens(7)[:100]
"""Six pages, and a part of one that is never stored."""


def prompt(salt: str | None = None) -> PrefixKeys:
    return PrefixKeys(SIX, seed(None, salt))


class Engine(Naming):
    """One whose pages lie in a store, too."""

    store: SharedStore

    def facts(self) -> Facts:
        facts = super().facts()
        return Facts(
            engine=facts.engine,
            engine_version=facts.engine_version,
            model=facts.model,
            namespace=facts.namespace,
            store_id=self.store.store_id,
        )


Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """An engine's tiers and its agent. `folder` names its disk, `name` its sockets."""
    monkeypatch.setattr(AnEngine, "kind", "fake")
    (tmp_path / "sockets").mkdir()
    started: list[Served] = []

    def make(name: str = "a", **settings: Path) -> Served:
        store = open_store(str(tmp_path / "store"), Settings(page_bytes=PAGE_BYTES))
        tiers = rig(tmp_path / name, more=[store])
        inside = Engine(tiers.tiers)
        inside.store = store
        bound = AgentSettings(bind=f"ipc://{tmp_path}/sockets/{name}", **settings)
        agent = Agent(inside, bound, PinSettings())
        started.append(Served(agent, inside, tiers))
        return started[-1]

    yield make
    for one in started:
        end(one)


def end(one: Served) -> None:
    one.agent.close()
    one.rig.tiers.close()
    assert one.agent.failures == 0


def settled(one: Served) -> None:
    assert one.rig.tiers.drain(10)


async def test_what_comes_and_goes_in_real_tiers_is_known(world: World, start: Start) -> None:
    one = start()
    one.put(SIX)
    settled(one)
    world.follow(one.agent.endpoints.control)
    await until(lambda: world.held(prompt=prompt()) == [0, 96, 0, 0])
    one.drop_host()
    await until(lambda: world.held(prompt=prompt()) == [0, 0, 96, 0])
    one.rig.tiers.clear(CacheTier.SSD)
    await until(lambda: world.held(prompt=prompt()) == [0, 0, 0, 96])
    one.put(SIX)
    await until(lambda: world.held(prompt=prompt()) == [0, 96, 0, 0])


async def test_a_gateway_started_again_knows_all_tiers(world: World, start: Start) -> None:
    one = start()
    one.put(SIX)
    one.drop_host()
    one.put(SIX[:64])
    one.rig.tiers.clear(CacheTier.SSD)
    one.put(SIX[:48])
    settled(one)
    first = world.follow(one.agent.endpoints.control)
    await until(lambda: world.held(prompt=prompt())[1:] == [64, 0, 32])
    again = World()
    again.follow(one.agent.endpoints.control)
    await until(lambda: again.held(prompt=prompt())[1:] == [64, 0, 32])
    await again.end()
    again.context.term()
    assert first.agent.alive


async def test_an_engine_started_again_keeps_its_ssd_alone(world: World, start: Start) -> None:
    one = start()
    one.put(SIX)
    settled(one)
    follower = world.follow(one.agent.endpoints.control)
    await until(lambda: world.held(prompt=prompt()) == [0, 96, 0, 0])
    end(one)
    start()  # the same sockets, the same disk
    await until(lambda: world.held(prompt=prompt()) == [0, 0, 96, 0])
    assert follower.agent.alive


async def test_pages_of_one_replica_in_a_store_are_known_for_the_other(world: World, start: Start) -> None:
    one, other = start("a"), start("b")
    world.follow(one.agent.endpoints.control, "a")
    world.follow(other.agent.endpoints.control, "b")
    one.put(SIX)
    settled(one)
    await until(lambda: world.held("b", prompt()) == [0, 0, 0, 96])
    named = other.inside.prompt(SIX, None, None)
    found = other.rig.tiers.match(named.namespace, named.keys)
    assert found.pages == 6, "and the other would find them"


async def test_salts_keep_tenants_apart(world: World, start: Start) -> None:
    one = start()
    one.put(SIX, salt="mine")
    world.follow(one.agent.endpoints.control)
    await until(lambda: world.held(prompt=prompt("mine")) == [0, 96, 0, 0])
    assert world.held(prompt=prompt("yours")) == world.held(prompt=prompt()) == [0, 0, 0, 0]


async def test_an_agent_that_asks_for_keys(
    monkeypatch: pytest.MonkeyPatch, world: World, start: Start, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    server, ours, _ = (keys.make(tmp_path / name) for name in ("server", "ours", "strangers"))
    (tmp_path / "clients").write_bytes(ours + b"\n")
    one = start(key_file=tmp_path / "server" / "secret.key", clients_file=tmp_path / "clients")
    one.put(SIX)
    known, stranger = (
        Keys(keys.read_key(tmp_path / name / "secret.key"), server) for name in ("ours", "strangers")
    )
    follower = world.follow(one.agent.endpoints.control, "a", known)
    await until(lambda: world.held(prompt=prompt()) == [0, 96, 0, 0])
    one.drop_host()  # the stream lets us in, too
    await until(lambda: world.held(prompt=prompt()) == [0, 0, 96, 0])
    assert follower.agent.alive
    for name, with_keys in (("b", stranger), ("c", None)):
        refused = world.follow(one.agent.endpoints.control, name, with_keys)
        await until(lambda refused=refused: "can't be reached" in refused.agent.trouble)  # type: ignore[misc]


async def test_what_is_foretold_is_what_the_agent_would_load(world: World, start: Start) -> None:
    """With its own rates and threshold, which the follower heard."""
    one = start()
    one.put(SIX)
    one.drop_host()
    one.put(SIX[:32])
    settled(one)
    follower = world.follow(one.agent.endpoints.control)
    await until(lambda: world.held(prompt=prompt()) == [0, 32, 64, 0])
    match = world.index.match(prompt())
    gpu, host, ssd, shared = match.tokens[0].tolist()
    foretold = estimate(Held((gpu, host, ssd, shared), match.spans()[0]), follower.agent.economics)
    said = await follower.agent.client.match(np.asarray(SIX))
    assert sum(foretold.cached) == said.cut == 96
    assert [(span.tier, span.end) for span in said.spans] == [("host", 32), ("ssd", 96)]
