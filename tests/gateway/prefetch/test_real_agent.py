"""The gateway before a real agent, over a real hierarchy: what it orders is done."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cache.tiers.base import Tier
from engine_adapters.agent.base import Facts
from gateway.knowledge import agents
from tests.cache.conftest import make_rig
from tests.engine_adapters.agent.build import Naming, Served
from tests.engine_adapters.agent.conftest import Serve as ServeAgent
from tests.engine_adapters.agent.conftest import serve as serve_agent
from tests.fakes.byte_model import save_byte_model
from tests.gateway.conftest import FAST, Running, running, until
from tests.gateway.test_prefix_routing import Engine

__all__ = ["make_rig", "serve_agent"]

IDS = [number % 200 for number in range(512)]
PROMPT = np.array(IDS, np.uint32)
BODY = {"model": "fake", "prompt": IDS, "max_tokens": 2}
TOKENS = {"model": "fake", "token_ids": IDS}


@pytest.fixture
def agent(serve_agent: ServeAgent, monkeypatch: pytest.MonkeyPatch) -> Served:
    facts = Naming.facts

    def as_vllm(self: Naming) -> Facts:
        return replace(facts(self), engine="vllm")

    monkeypatch.setattr(Naming, "facts", as_vllm)
    monkeypatch.setattr(agents, "POLL_S", 0.05)
    return serve_agent(slots=64)


@pytest.fixture
async def gateway(agent: Served, tmp_path: Path) -> AsyncIterator[Running]:
    async with Engine() as engine:
        replica = {"url": engine.url, "name": "a", "agent": agent.agent.endpoints.control}
        models = {"fake": {"tokenizer": str(save_byte_model(tmp_path))}}
        flags = {**FAST, "log": {"requests": False}, "replicas": [replica], "models": models}
        async with running(flags) as served:
            (model,) = served.gateway.knowledge
            await until(lambda: any(model.tokenizers()))
            await until(lambda: (known := served.gateway.fleet["a"].agent) is not None and known.alive)
            yield served


async def cached(gateway: Running, **fields: Any) -> dict[str, int]:
    answer = await gateway.client.post("/v1/route", json={**BODY, **fields})
    held: dict[str, int] = answer.json()["candidates"][0]["cached_tokens"]
    return {tier: tokens for tier, tokens in held.items() if tokens}


async def until_cached(gateway: Running, expected: dict[str, int]) -> None:
    async with asyncio.timeout(20):
        while await cached(gateway) != expected:
            await asyncio.sleep(0.02)


def on_disk_alone(agent: Served, salt: str | None = None) -> None:
    assert agent.put(PROMPT, salt) == 32
    agent.drop_host()


def where(agent: Served) -> set[Tier]:
    named = agent.inside.prompt(PROMPT, None, None)
    return {span.tier for span in agent.rig.tiers.match(named.namespace, named.keys).spans}


async def test_a_request_finds_in_host_what_lay_on_disk(agent: Served, gateway: Running) -> None:
    on_disk_alone(agent)
    await until_cached(gateway, {"ssd": 496})
    assert where(agent) == {Tier.SSD}
    answer = await gateway.client.post("/v1/completions", json=BODY)
    assert "ssd=496" in answer.headers["x-hpkv-cached-tokens"]
    await until(lambda: where(agent) == {Tier.HOST})
    await until(lambda: agent.rig.tiers.activity().leases == 0)


async def test_tenants_have_prompts_brought_up_and_kept(agent: Served, gateway: Running) -> None:
    on_disk_alone(agent)
    await until_cached(gateway, {"ssd": 496})
    told = (await gateway.client.post("/v1/cache/prefetch", json=TOKENS)).json()
    assert (told["found"]["ssd"], told["loading"], told["missing"]) == (512, 512, 0)
    await until_cached(gateway, {"host": 496})
    pin = (await gateway.client.post("/v1/cache/pin", json=TOKENS)).json()
    assert (pin["tokens"], pin["pinned"], pin["seconds"]) == (512, 512, 600)
    leases = agent.rig.tiers.activity().leases
    assert (await gateway.client.delete(f"/v1/cache/pin/{pin['id']}")).status_code == 200
    assert agent.rig.tiers.activity().leases == leases - 1


async def test_a_tenant_reaches_its_own_pages_alone(agent: Served, gateway: Running) -> None:
    on_disk_alone(agent, "tenant")
    for salt, found in ((None, 0), ("other", 0), ("tenant", 512)):
        fields = {**TOKENS, "cache_salt": salt}
        told = (await gateway.client.post("/v1/cache/prefetch", json=fields)).json()
        assert (sum(told["found"].values()), told["missing"]) == (found, 512 - found)
    for salt, pinned in ((None, 0), ("other", 0), ("tenant", 512)):
        told = (await gateway.client.post("/v1/cache/pin", json={**TOKENS, "cache_salt": salt})).json()
        assert told["pinned"] == pinned
