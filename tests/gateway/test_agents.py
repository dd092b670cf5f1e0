"""Requests before replicas with agents: what is foretold, where they go, and what is seen of it all."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cache.prefix import PrefixKeys, seed
from engine_adapters import wire
from gateway.knowledge import agents
from tests.gateway.conftest import running, until
from tests.gateway.prefetch.conftest import MakeSite, Site, agents_of, site

__all__ = ["agents_of", "site"]

IDS = [number % 200 for number in range(1000)]
"""62 pages, and half of one."""
BODY = {"model": "fake", "prompt": IDS, "max_tokens": 2}


def prompt(salt: str | None = None) -> PrefixKeys:
    return PrefixKeys(IDS, seed(None, salt))


async def route(here: Site, **fields: Any) -> dict[str, dict[str, Any]]:
    """The candidates by name."""
    answer = await here.client.post("/v1/route", json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return {candidate["replica"]: candidate for candidate in answer.json()["candidates"]}


async def warnings(here: Site) -> list[str]:
    (model,) = (await here.client.get("/readyz")).json()["models"]
    return list(model["warnings"])


async def test_what_the_agent_would_load_is_foretold_and_explained(site: MakeSite) -> None:
    here = await site()
    here.agents[0].store("host", prompt(), 0, 20)
    here.agents[0].store("ssd", prompt(), 20, 50)
    here.agents[0].store("shared", prompt())
    await here.settle()
    replica = (await route(here))["replica-0"]
    assert replica["held_tokens"] == {"gpu": 0, "host": 320, "ssd": 480, "shared": 192}
    assert replica["cached_tokens"] == replica["held_tokens"]
    assert replica["prefill_tokens"] == 8
    assert replica["load_s"] == pytest.approx(992 / 1e6)
    assert replica["agent"] == {
        "cut": 992,
        "threshold": 16,
        "page_tokens": 16,
        "prefill_tokens_per_s": 1e4,
        "tokens_per_s": {"host": 1e6, "ssd": 1e6, "shared": 1e6},
    }
    answer = await here.client.post("/v1/completions", json=BODY)
    assert answer.headers["x-hpkv-cached-tokens"] == "host=320, ssd=480, shared=192"
    page = (await here.client.get("/metrics")).text
    assert 'hpkv_gateway_predicted_cached_tokens_total{model="fake",tier="ssd"} 480.0' in page
    assert 'hpkv_agent_up{replica="replica-0"} 1.0' in page
    assert 'hpkv_agent_events_snapshots_total{replica="replica-0"} 1.0' in page


async def test_the_agents_threshold_and_rates_decide_and_are_followed(site: MakeSite) -> None:
    here = await site()
    agent = here.agents[0]
    agent.store("host", prompt())
    await here.settle()
    agent.statistics = msgspec.structs.replace(agent.statistics, threshold=993)
    await until(lambda: here.replicas[0].agent is not None and here.replicas[0].agent.threshold == 993)
    replica = (await route(here))["replica-0"]
    assert (replica["cached_tokens"]["host"], replica["held_tokens"]["host"]) == (0, 992)
    slow = {**agent.statistics.tiers, "host": wire.TierInfo(tokens_per_s=10.0)}
    agent.statistics = msgspec.structs.replace(agent.statistics, threshold=16, tiers=slow)
    await until(lambda: here.replicas[0].agent is not None and here.replicas[0].agent.threshold == 16)
    assert (await route(here))["replica-0"]["cached_tokens"]["host"] == 0


async def test_requests_go_where_loading_is_quickest(site: MakeSite) -> None:
    here = await site(3)
    here.agents[1].store("ssd", prompt())
    here.agents[2].store("host", prompt(), 0, 8)
    await here.settle()
    answer = await here.client.post("/v1/completions", json=BODY)
    assert answer.headers["x-hpkv-replica"] == "replica-1"


async def test_one_replicas_pages_on_a_shared_store_are_foretold_for_the_other(site: MakeSite) -> None:
    here = await site(2)
    here.agents[0].store("shared", prompt())
    await here.settle()
    found = await route(here)
    assert [found[f"replica-{i}"]["cached_tokens"]["shared"] for i in (0, 1)] == [992, 992]


async def test_a_tenants_pages_are_foretold_for_nobody_else(site: MakeSite) -> None:
    here = await site()
    here.agents[0].store("host", prompt("tenant"))
    await here.settle()
    assert (await route(here))["replica-0"]["held_tokens"]["host"] == 0
    assert (await route(here, cache_salt="other"))["replica-0"]["held_tokens"]["host"] == 0
    assert (await route(here, cache_salt="tenant"))["replica-0"]["held_tokens"]["host"] == 992


async def test_a_new_gateway_knows_all_tiers(site: MakeSite) -> None:
    here = await site()
    here.agents[0].store("host", prompt(), 0, 20)
    here.agents[0].store("ssd", prompt(), 20, 40)
    here.agents[0].store("shared", prompt(), 40)
    here.agents[0].publisher.forget()
    settings = here.served.gateway.settings.model_dump(mode="json", exclude={"access", "limits"})
    async with running(settings) as served:
        new = Site(served, here.engines, here.agents)
        await until(lambda: any(new.model.tokenizers()))
        await until(lambda: bool(new.model.followers()["replica-0"].stream))
        await new.settle()
        held = (await route(new))["replica-0"]["held_tokens"]
    assert held == {"gpu": 0, "host": 320, "ssd": 320, "shared": 352}


@pytest.mark.parametrize("how", ["gone", "mute"])
async def test_a_lost_agent_is_seen_and_costs_its_tiers_only(
    site: MakeSite, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(agents, "ANSWER_S", 0.2)
    monkeypatch.setattr(agents, "PATIENCE_S", 0.5)
    here = await site()
    agent = here.agents[0]
    agent.store("host", prompt())
    await here.settle()
    await here.client.post("/v1/completions", json=BODY)  # what it computes lies in gpu from then on
    restore: Callable[[], None] = agent.start
    if how == "gone":
        agent.stop()
    else:
        restore, agent.behave = lambda: None, lambda call, answers: None
    async with asyncio.timeout(20):
        while not await warnings(here):
            await asyncio.sleep(0.05)
    (warning,) = await warnings(here)
    assert warning.startswith("replica-0: no agent: ")
    answer = await here.client.post("/v1/completions", json=BODY)
    assert answer.status_code == 200
    assert answer.headers["x-hpkv-cached-tokens"] == "gpu=992"
    assert 'hpkv_agent_up{replica="replica-0"} 0.0' in (await here.client.get("/metrics")).text
    assert (await route(here))["replica-0"]["agent"] is None
    restore()
