"""Requests of which a part lies on shared storage: what their way through the gateway orders and corrects."""

import asyncio
import time
from typing import Any

import httpx2
import pytest

from cache.prefix import PrefixKeys, seed
from engine_adapters import wire
from tests.fakes.agent import FakeAgent
from tests.gateway.conftest import until
from tests.gateway.prefetch.conftest import MakeSite, Site

IDS = [number % 200 for number in range(512)]
KEYS = PrefixKeys(IDS, seed(None, None))
BODY = {"model": "fake", "prompt": IDS, "max_tokens": 2}


class Telling:
    """An agent's answers to orders, and when they were asked for."""

    def __init__(self, agent: FakeAgent, found: int = 496, ticket: int = 7) -> None:
        self.agent = agent
        self.order = wire.Order(ticket=ticket, spans=[wire.Span("shared", found)] if found else [], cut=found)
        self.progress = wire.Progress(tokens=found, loaded=found, running=False)
        self.at: list[float] = []
        agent.behave = self._behave

    def _behave(self, call: wire.Call, answers: list[wire.Answer]) -> list[wire.Answer] | None:
        if isinstance(call, wire.Prefetch):
            self.at.append(time.monotonic())
            return [self.order]
        return [self.progress] if isinstance(call, wire.Cancel) else answers

    def count(self, kind: type[wire.Call]) -> int:
        return sum(isinstance(call, kind) for call in self.agent.calls)


async def outcomes(site: Site) -> dict[str, float]:
    page = (await site.client.get("/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("hpkv_gateway_prefetches_ended_total{")]
    return {line.split('outcome="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


async def ended(site: Site, outcome: str) -> None:
    async with asyncio.timeout(20):
        while (await outcomes(site)).get(outcome) != 1:
            await asyncio.sleep(0.02)


async def ask(site: Site, **fields: Any) -> httpx2.Response:
    return await site.client.post("/v1/completions", json={**BODY, **fields})


def on_its_way(here: Site, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request that is sent to the replica: whether its agent has been asked by then."""
    (replica,) = here.replicas
    connection, asked = replica.engine.connection, list[bool]()
    send, sent = connection.send, list[wire.Call]()
    assert replica.agent is not None
    client = replica.agent.client
    call = client.call

    async def calling(what: wire.Call, *args: Any) -> Any:
        sent.append(what)
        return await call(what, *args)

    async def sending(method: str, path: str, *args: Any, **named: Any) -> Any:
        if path == "/v1/completions":
            asked.append(any(isinstance(what, wire.Prefetch) for what in sent))
        return await send(method, path, *args, **named)

    monkeypatch.setattr(client, "call", calling)
    monkeypatch.setattr(connection, "send", sending)
    return asked


async def test_what_lies_on_shared_storage_is_ordered_before_the_request_is_sent(
    site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await site()
    here.agents[0].store("shared", KEYS)
    await here.settle()
    telling = Telling(here.agents[0])
    ordered = on_its_way(here, monkeypatch)
    answer = await ask(here)
    assert answer.status_code == 200
    assert "shared=496" in answer.headers["x-hpkv-cached-tokens"]
    await until(lambda: telling.count(wire.Prefetch) == 1)
    assert ordered == [True]
    await until(lambda: telling.count(wire.Cancel) == 1)
    await ended(here, "useful")


async def test_a_prompt_in_host_memory_orders_nothing(site: MakeSite) -> None:
    here = await site()
    here.agents[0].store("host", KEYS)
    await here.settle()
    telling = Telling(here.agents[0])
    answer = await ask(here)
    assert "host=496" in answer.headers["x-hpkv-cached-tokens"]
    assert telling.count(wire.Prefetch) == 0


async def test_it_can_be_turned_off(site: MakeSite) -> None:
    here = await site(routing={"prefetch": False})
    here.agents[0].store("shared", KEYS)
    await here.settle()
    telling = Telling(here.agents[0])
    answer = await ask(here)
    assert "shared=496" in answer.headers["x-hpkv-cached-tokens"]
    assert telling.count(wire.Prefetch) == 0


async def test_a_client_that_leaves_before_its_first_chunk_gives_it_up(site: MakeSite) -> None:
    here = await site()
    here.agents[0].store("shared", KEYS)
    await here.settle()
    telling = Telling(here.agents[0])
    here.engines[0].freeze()
    asked = asyncio.create_task(ask(here))
    await until(lambda: telling.count(wire.Prefetch) == 1)
    asked.cancel()
    await until(lambda: telling.count(wire.Cancel) == 1)
    await ended(here, "wasted")
    here.engines[0].thaw()
    await asyncio.gather(asked, return_exceptions=True)


async def test_a_request_that_moves_takes_its_prefetch_along(site: MakeSite) -> None:
    here = await site(2)
    prompts = [[number, *IDS] for number in range(6)]  # equal replicas take turns
    for agent in here.agents:
        for prompt in prompts:
            agent.store("shared", PrefixKeys(prompt, seed(None, None)))
    await here.settle()
    telling = [Telling(agent) for agent in here.agents]
    here.engines[0].faults.die_before_first_byte = True
    for prompt in prompts:
        answer = await ask(here, prompt=prompt)
        assert (answer.status_code, answer.headers["x-hpkv-replica"]) == (200, "replica-1")
        if telling[0].at:
            break
    for told in telling:
        await until(lambda told=told: told.count(wire.Prefetch) > 0)  # type: ignore[misc]
        await until(lambda told=told: told.count(wire.Cancel) == told.count(wire.Prefetch))  # type: ignore[misc]


async def test_a_mute_agent_delays_nobody(site: MakeSite) -> None:
    here = await site()
    here.agents[0].store("shared", KEYS)
    await here.settle()
    here.agents[0].behave = lambda call, answers: None
    begun = time.monotonic()
    assert (await ask(here)).status_code == 200
    assert time.monotonic() - begun < 3, "an answer is awaited for five seconds, by nobody who has a client"


@pytest.mark.parametrize(("found", "shared"), [(0, 0), (160, 160)])
async def test_a_wrong_hint_is_corrected_by_the_first_who_meets_it(
    site: MakeSite, found: int, shared: int
) -> None:
    here = await site(2)
    here.agents[0].store("shared", KEYS)
    await here.settle()
    for agent in here.agents:
        Telling(agent, found, ticket=0)
    assert "shared=496" in (await ask(here)).headers["x-hpkv-cached-tokens"]
    await ended(here, "missed")
    told = (await here.client.post("/v1/route", json=BODY)).json()["candidates"]
    assert {candidate["cached_tokens"]["shared"] for candidate in told} <= {shared, 0}
