"""Replicas that come, go, and serve other models."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from cache.prefix import PrefixKeys
from engine_adapters.base import Address, Engine, ModelCard
from engine_adapters.http import Connection
from gateway.fleet import Fleet, Replica
from gateway.knowledge import Knowledge
from gateway.settings import ModelSettings, PrefixSettings, ProbeSettings

PROMPT = PrefixKeys(range(100), 0)


def card(name: str) -> ModelCard:
    return ModelCard(name, "/nowhere", None, None, {})


class SilentEngine:
    """One without events."""

    kind = "vllm"
    address = Address(cast(Connection, None))

    def events(self, *_: Any) -> None:
        return None


class World:
    """A fleet whose replicas rise and fall as told."""

    def __init__(self, replicas: int) -> None:
        engine = cast(Engine, SilentEngine())
        self.replicas = [Replica(str(number), engine) for number in range(replicas)]
        settings = PrefixSettings(index_blocks=1 << 14)
        models = {name: ModelSettings(tokenizer="/nowhere") for name in ("one", "other")}
        fleet = Fleet(self.replicas, ProbeSettings())
        self.knowledge = Knowledge(settings, models, fleet, most=len(fleet), active=True)

    def replicas_of(self, model: str) -> int:
        found = [known for known in self.knowledge if known.name == model]
        return len(found[0].index.match(PROMPT).origins) if found else 0


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    world = World(request.param)
    yield world
    await world.knowledge.close()


@pytest.mark.parametrize("world", [100], indirect=True)
async def test_a_fleet_of_any_size_has_room(world: World) -> None:
    for _ in range(2):
        for replica in world.replicas:
            replica.rise([card("one")])
        assert world.replicas_of("one") == 100
        for replica in world.replicas[:12]:
            replica.fall("started again")
        assert world.replicas_of("one") == 88


@pytest.mark.parametrize("world", [2], indirect=True)
async def test_a_replica_that_serves_another_model_left_the_first(world: World) -> None:
    for replica in world.replicas:
        replica.rise([card("one")])
    world.replicas[0].rise([card("other")])
    assert (world.replicas_of("one"), world.replicas_of("other")) == (1, 1)
    world.replicas[0].fall("gone")
    assert (world.replicas_of("one"), world.replicas_of("other")) == (1, 0)
