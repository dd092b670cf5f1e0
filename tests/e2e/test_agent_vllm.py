"""The agent in a real vLLM: it names pages as requests do, brings them up, and stays out of the way."""

import asyncio
import random
import re
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
import zmq

from cache.prefix import prefix_keys, seed
from engine_adapters import wire
from engine_adapters.agent.client import AgentClient
from engine_adapters.errors import AgentRefused
from engine_adapters.events import Tier
from engine_adapters.vllm.launch import Launch
from tests.e2e import agents
from tests.e2e.agents import brought, following, spans
from tests.e2e.tiered import BLOCK, FLAGS, PAGE_BYTES, THRESHOLD, Tiered, crew_of, prompt
from tests.engines import LORA, LORA_FOLDERS, MODEL, Pool, ready
from tests.lora import make_adapter
from tests.serving import Serving, serving
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
TIERS: tuple[wire.TierName, ...] = ("host", "ssd", "shared")
PAGES = 8
ADMIN_KEY = "an-admin-key"
CAPACITY = 96
"""Pages of the host tier."""


class Way(NamedTuple):
    """Whose a request is, and the LoRA that answers it."""

    salt: str | None = None
    lora: str | None = None


PLAIN = Way()


class Registered(Tiered):
    """A server that keeps itself registered at a gateway."""

    def __init__(self, gateway: str, folder: Path, *args: Any) -> None:
        key = folder / "admin.key"
        key.write_text(ADMIN_KEY)
        self._gateway = {"url": gateway, "admin_key_file": str(key)}
        super().__init__("agent", folder, *args)

    def _launch(self) -> Launch:
        return replace(super()._launch(), gateway={**self._gateway, "replica_url": self.url})


@pytest.fixture(scope="module")
def gateway() -> Iterator[Serving]:
    with serving(HPKV_ACCESS__ADMIN_KEYS=ADMIN_KEY) as served:
        yield served


@pytest.fixture(scope="module")
def engine(engine_pool: Pool, small_model_folder: Path, gateway: Serving) -> Iterator[Tiered]:
    make_adapter(small_model_folder, LORA_FOLDERS[LORA])
    with crew_of("agent", engine_pool) as (crew, folder):
        tiers = {
            "host": CAPACITY * (PAGE_BYTES + 4096),
            "ssd": {"path": str(folder / "ssd"), "cap": "1GiB", "free_floor": 0},
            "shared": {"url": str(folder / "shared")},
        }
        lora = ("--enable-lora", "--max-lora-rank=8", f"--lora-modules={LORA}={LORA_FOLDERS[LORA]}")
        flags = (*FLAGS, "--shutdown-timeout=30", *lora)
        started = Registered(gateway.url, folder, crew, tiers, flags)
        with ready(started):
            yield started


# ---- what tests ask ----------------------------------------------------------------------------------


def ask(engine: Tiered, talk: Callable[[AgentClient], Awaitable[T]]) -> T:
    """One conversation with the engine's agent."""
    return agents.ask(engine.agent, talk)


def hello(engine: Tiered) -> wire.Identity:
    return ask(engine, lambda client: client.hello())


def stats(engine: Tiered) -> wire.Statistics:
    return ask(engine, lambda client: client.stats())


def match(engine: Tiered, tokens: list[int], way: Way = PLAIN) -> list[tuple[str, int]]:
    return spans(ask(engine, lambda client: client.match(tokens, way.salt, way.lora)))


def registered(gateway: Serving) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    told: list[dict[str, Any]] = gateway.client.get("/v1/replicas", headers=headers).json()["data"]
    return told


def complete(engine: Tiered, tokens: list[int], way: Way) -> None:
    salt = {"cache_salt": way.salt} if way.salt else {}
    engine.complete(tokens, most=1, model=way.lora or MODEL, **salt)


def names(tokens: list[int], salt: str | None = None) -> set[int]:
    """The prefix keys of a prompt's pages."""
    return set(prefix_keys(tokens, BLOCK, seed(None, salt)).tolist())


def listed(engine: Tiered, tier: wire.TierName) -> set[int]:
    return agents.listed(engine.agent, tier)


# ---- tests -------------------------------------------------------------------------------------------


def test_who_it_is(engine: Tiered) -> None:
    identity = hello(engine)
    assert (identity.engine, identity.engine_version, identity.model) == ("vllm", "0.32.0", MODEL)
    assert (identity.page_tokens, identity.threshold) == (BLOCK, THRESHOLD)
    assert (identity.events, identity.replay) == (engine.events, engine.replay)
    assert set(identity.tiers) == {"gpu", "host", "ssd", "shared"}
    assert identity.tiers["gpu"].capacity_bytes == 64 * PAGE_BYTES
    assert CAPACITY * PAGE_BYTES <= identity.tiers["host"].capacity_bytes < (CAPACITY + 1) * PAGE_BYTES
    assert identity.store_id
    assert identity.loras == {}


def test_the_gateway_knows_it_and_follows_its_agent(engine: Tiered, gateway: Serving) -> None:
    until(lambda: [one["state"] for one in registered(gateway)] == ["up"])
    (told,) = registered(gateway)
    assert (told["url"].rstrip("/"), told["engine"], told["registered"]) == (engine.url, "vllm", True)
    until(lambda: registered(gateway)[0]["agent"] == {"address": engine.agent, "alive": True, "reason": None})
    assert ADMIN_KEY not in engine.log_end(10_000)


def test_pages_are_called_as_requests_call_them(engine: Tiered) -> None:
    """Plain, of two tenants, of a LoRA, and of a tenant whose salt is the LoRA's name."""
    tokens = prompt(500, PAGES * BLOCK + 3)
    with pytest.raises(AgentRefused, match="no request for LoRA") as refused:
        match(engine, tokens, Way(lora=LORA))
    assert refused.value.code == "unknown_lora"
    complete(engine, [1, 2], Way(lora=LORA))
    until(lambda: LORA in hello(engine).loras)
    ways = [Way(), Way("one"), Way(LORA), Way(lora=LORA), Way("one", LORA)]
    for pages, way in enumerate(ways, 3):
        assert match(engine, tokens, way) == []
        complete(engine, tokens[: pages * BLOCK + 1], way)
        engine.settled()
    for pages, way in enumerate(ways, 3):
        assert match(engine, tokens, way) == [("host", pages * BLOCK)]


def test_a_prefetched_page_is_a_host_hit(engine: Tiered) -> None:
    tokens = prompt(510, PAGES * BLOCK + 1)
    first = engine.complete(tokens)
    engine.settled()
    engine.forget(host=True)

    async def bring(client: AgentClient) -> int:
        order = await client.prefetch(tokens, seconds=60)
        assert spans(order) == [("ssd", PAGES * BLOCK)]
        assert (await client.prefetch(tokens, seconds=60)).ticket == order.ticket
        assert await brought(client, order.ticket) == wire.Progress(
            tokens=PAGES * BLOCK, loaded=PAGES * BLOCK, running=False
        )
        return order.ticket

    before = engine.metrics()
    ticket = ask(engine, bring)
    assert match(engine, tokens) == [("host", PAGES * BLOCK)]
    again = engine.complete(tokens)
    after = engine.metrics()

    def grown(name: str, **labels: str) -> float:
        return after.get(name, **labels) - before.get(name, **labels)

    assert (again.cached, again.tokens) == (PAGES * BLOCK, first.tokens)
    assert grown("hpkv_loaded_tokens", tier="host") == PAGES * BLOCK
    assert grown("hpkv_loaded_tokens", tier="ssd") == 0
    assert grown("hpkv_read_tokens", tier="ssd") == PAGES * BLOCK
    assert (grown("hpkv_hit_tokens", tier="host"), grown("hpkv_hit_tokens", tier="ssd")) == (PAGES * BLOCK, 0)
    assert grown("hpkv_prefetches") == 1
    assert stats(engine).prefetches == after.get("hpkv_prefetches")
    for leases in (1, 0):  # two have ordered it
        ask(engine, lambda client: client.cancel(ticket))
        assert stats(engine).leases == leases


def test_a_request_shares_a_prefetch_that_is_under_way(engine: Tiered) -> None:
    tokens = prompt(515, PAGES * BLOCK + 1)
    first = engine.complete(tokens)
    engine.settled()
    engine.forget(host=True)
    engine.disturb(read_seconds=1)
    before = stats(engine)
    order = ask(engine, lambda client: client.prefetch(tokens, seconds=60))
    assert order.ticket
    again = engine.complete(tokens)
    engine.disturb()
    after = stats(engine)
    assert (again.cached, again.tokens) == (PAGES * BLOCK, first.tokens)
    assert after.tiers["ssd"].loaded_tokens - before.tiers["ssd"].loaded_tokens == PAGES * BLOCK
    ask(engine, lambda client: client.cancel(order.ticket))


def test_tenants_reach_their_own_pages_alone(engine: Tiered) -> None:
    tokens = prompt(520, PAGES * BLOCK + 1)
    owner, other = Way("a tenant"), Way("another")
    complete(engine, tokens, owner)
    engine.settled()
    engine.forget(host=True)

    async def try_all(client: AgentClient) -> tuple[wire.Order, wire.Kept]:
        return (
            await client.prefetch(tokens, other.salt, seconds=5),
            await client.pin(tokens, other.salt, seconds=5),
        )

    order, kept = ask(engine, try_all)
    assert (order.ticket, spans(order), kept.tokens) == (0, [], 0)
    assert match(engine, tokens, other) == match(engine, tokens) == []
    assert match(engine, tokens, owner) == [("ssd", PAGES * BLOCK)]
    assert names(tokens, owner.salt) <= listed(engine, "ssd")
    removed = ask(engine, lambda client: client.clear(salt=other.salt))
    assert removed.pages == 0
    removed = ask(engine, lambda client: client.clear(salt=owner.salt))
    assert removed.pages == 2 * PAGES  # in ssd and in shared
    assert match(engine, tokens, owner) == []


def test_pinned_pages_outlast_pressure(engine: Tiered) -> None:
    tokens = prompt(530, PAGES * BLOCK + 1)
    engine.complete(tokens, most=1)
    engine.settled()
    kept = ask(engine, lambda client: client.pin(tokens, seconds=600))
    assert (kept.tokens, kept.seconds) == (PAGES * BLOCK, 600)
    for number in range(CAPACITY // PAGES):
        engine.complete(prompt(531 + number, PAGES * BLOCK + 1), most=1)
    engine.settled()
    assert match(engine, tokens) == [("host", PAGES * BLOCK)]
    assert ask(engine, lambda client: client.unpin(tokens)).tokens == 0
    for number in range(CAPACITY // PAGES):
        engine.complete(prompt(561 + number, PAGES * BLOCK + 1), most=1)
    engine.settled()
    assert match(engine, tokens) == [("ssd", PAGES * BLOCK)]
    assert stats(engine).leases == 0


def test_prefetches_beyond_host_disturb_nobody(engine: Tiered) -> None:
    """All orders together want twelve times what `host` holds."""
    pinned, asked = prompt(591, PAGES * BLOCK + 1), prompt(592, PAGES * BLOCK + 1)
    first = [engine.complete(tokens) for tokens in (pinned, asked)]
    engine.settled()
    engine.forget()

    async def storm(client: AgentClient) -> list[wire.Order]:
        await client.pin(pinned, seconds=600)
        stored = [prompt(531 + number, PAGES * BLOCK + 1) for number in range(CAPACITY // PAGES)]
        stored += [prompt(561 + number, PAGES * BLOCK + 1) for number in range(CAPACITY // PAGES)]
        orders = (client.prefetch(stored[number % len(stored)], seconds=3) for number in range(100))
        return await asyncio.gather(*orders)

    orders = ask(engine, storm)
    assert any(order.ticket for order in orders)
    assert engine.complete(asked).tokens == first[1].tokens
    assert engine.complete(pinned).tokens == first[0].tokens
    assert match(engine, pinned) == [("host", PAGES * BLOCK)]
    ask(engine, lambda client: client.unpin(pinned))
    until(lambda: (stats(engine).tickets, stats(engine).leases) == (0, 0), 120)
    assert stats(engine).tiers["host"].errors == 0


def test_stream_and_snapshot_tell_what_comes_and_goes(engine: Tiered) -> None:
    tokens = prompt(600, PAGES * BLOCK + 1)
    keys = names(tokens)
    with following(engine.agent) as followed:
        engine.complete(tokens, most=1)
        until(lambda: followed.tiers_with(keys) == {Tier.HOST, Tier.SSD, Tier.SHARED})
        assert all(keys <= listed(engine, tier) for tier in TIERS)
        engine.forget(host=True)
        until(lambda: followed.tiers_with(keys) == {Tier.SSD, Tier.SHARED})
        assert not keys & listed(engine, "host")
        assert followed.whole


def test_what_a_restart_keeps(engine: Tiered) -> None:
    tokens = prompt(610, PAGES * BLOCK + 1)
    engine.complete(tokens, most=1)
    engine.settled()
    before = hello(engine)
    assert names(tokens) <= listed(engine, "host")
    engine.restart()
    after = hello(engine)
    assert after.epoch != before.epoch
    assert (after.namespace, after.store_id) == (before.namespace, before.store_id)
    assert not names(tokens) & listed(engine, "host")
    assert names(tokens) <= listed(engine, "ssd")
    assert match(engine, tokens) == [("ssd", PAGES * BLOCK)]


def test_it_answers_while_the_engine_computes_and_takes_garbage(
    engine: Tiered, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens, chance = prompt(620, 20 * BLOCK), random.Random(3)
    engine.complete(tokens, most=1)
    rates: dict[str, float] = {}

    def decode(name: str) -> None:
        begun = time.monotonic()
        engine.complete(prompt(621, 5), most=96)
        rates[name] = 96 / (time.monotonic() - begun)

    def garbage(ended: threading.Event) -> int:
        sent = 0
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(engine.agent)
            socket.send(bytes(wire.MAX_FRAME + 1))
            while not ended.wait(0.01):
                body = msgspec.Raw(chance.randbytes(20))
                call = wire.Envelope(chance.choice((0, wire.VERSION, 1000)), 1, body)
                socket.send(chance.choice((chance.randbytes(200), msgspec.msgpack.encode(call), b"")))
                sent += 1
        return sent

    decode("alone")
    ended = threading.Event()
    with ThreadPoolExecutor() as pool:
        noise = pool.submit(garbage, ended)
        busy = pool.submit(decode, "with garbage and look-ups")
        asked = 0
        while not busy.done():
            assert match(engine, tokens)[-1][1] == 20 * BLOCK
            asked += 1
        ended.set()
        assert noise.result() > 0
        busy.result()
    assert asked > 0
    assert hello(engine).engine == "vllm"
    with capsys.disabled():
        print(f"\n  tokens/s: {rates}; look-ups: {asked}")


def test_it_ends_with_the_engine(engine: Tiered, gateway: Serving) -> None:
    assert registered(gateway)
    engine.signal(signal.SIGTERM)
    until(lambda: not engine.running)
    assert registered(gateway) == [], "its lease was given back"
    log = engine.log_end(2000)
    assert "hangs" not in log
    # Tracebacks through our code; vLLM's front end has its own when it is asked while it ends.
    assert not re.search(rf'File "{re.escape(str(ROOT))}/(cache|engine_adapters)/', log)
