"""An SGLang engine whose tiers are far too small, under load; then one of another dtype on its storage."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapters import wire
from engine_adapters.agent.client import AgentClient
from engine_adapters.events import Tier
from engine_adapters.up.crew import Crew
from tests.e2e.agents import brought, following, listed
from tests.e2e.load import many_turns
from tests.e2e.tiered import crew_of, prompt
from tests.e2e.tiered_sglang import PAGE, PAGE_BYTES, Small, TieredSglang, names
from tests.engines import Pool, ready
from tests.fakes.lessor import Gateway
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

MIB = 1 << 20
SLOT = PAGE_BYTES + 4096
SSD_PAGES = 200
SMALL = Small(host_ratio=1.0, ssd=SSD_PAGES * SLOT, shared=512 * MIB)
PAGES = 16
PINNED = prompt(1, PAGES * PAGE + 1)

Place = tuple[Crew, Path]


@pytest.fixture(scope="module")
def place(engine_pool: Pool) -> Iterator[Place]:
    with crew_of("load-sglang", engine_pool) as made:
        yield made


@pytest.fixture(scope="module")
def lessor() -> Iterator[Gateway]:
    """A gateway at which the engine registers itself."""
    with contextlib.closing(Gateway()) as made:
        made.answer["lease_s"] = 3
        yield made


@pytest.fixture(scope="module")
def left_before() -> set[Path]:
    """What vLLM's engines that were killed have left: the next of them removes it."""
    return set(Path("/dev/shm").glob("*hpkv*"))


@pytest.fixture(scope="module")
def engine(place: Place, lessor: Gateway, left_before: set[Path]) -> Iterator[TieredSglang]:
    crew, folder = place
    told = {"URL": lessor.url, "REPLICA_URL": "http://127.0.0.1:1"}
    registering = {f"HPKV_CACHE__GATEWAY__{name}": value for name, value in told.items()}
    started = TieredSglang("load", folder, crew, registering, small=SMALL)
    with ready(started):
        yield started


@pytest.mark.parametrize("seconds", [60.0, pytest.param(600.0, marks=pytest.mark.soak)])
def test_many_turns(engine: TieredSglang, seconds: float) -> None:
    first = engine.complete(PINNED)
    engine.wait_stored(PINNED)
    engine.ask(lambda client: client.pin(PINNED, seconds=3600))
    with following(engine.agent) as followed:
        followed.held[Tier.SSD] |= listed(engine.agent, "ssd")
        load = many_turns(engine, seconds, alike=4)
        until(lambda: engine.stats().tickets == 0)
        until(lambda: followed.held[Tier.SSD] == listed(engine.agent, "ssd"))
        assert followed.whole
    assert load.turns >= seconds / 10
    assert load.grown < 48 * MIB, f"memory grew by {load.grown / MIB:.0f} MiB"

    metrics = engine.settled()
    assert metrics.get("hpkv_errors") == 0
    assert metrics.get("hpkv_damaged_pages") == metrics.get("hpkv_failed_pages") == 0
    assert metrics.get("hpkv_evicted_tokens", tier="ssd") > 0
    came, went = (metrics.get(f"hpkv_{what}_tokens", tier="ssd") for what in ("stored", "evicted"))
    assert metrics.get("hpkv_tier_bytes", tier="ssd") == (came - went) // PAGE * SLOT
    assert metrics.get("hpkv_tier_bytes", tier="ssd") <= SSD_PAGES * SLOT
    assert len(listed(engine.agent, "ssd")) == (came - went) // PAGE
    assert engine.match(PINNED) == [("ssd", PAGES * PAGE)], "what is pinned outlasts all that came"
    engine.flush()
    assert engine.complete(PINNED).tokens == first.tokens
    engine.ask(lambda client: client.unpin(PINNED))
    until(lambda: engine.stats().leases == 0)


def test_prefetches_beyond_half_of_host_disturb_nobody(engine: TieredSglang) -> None:
    """A hundred, of twelve lengths of six prompts: 96 pages, and half of `host` is 40."""
    spare, *prompts = (prompt(2000 + number, PAGES * PAGE + 1) for number in range(7))
    texts = [engine.complete(tokens).tokens for tokens in (*prompts, spare)]
    until(lambda: set().union(*map(names, (*prompts, spare))) <= listed(engine.agent, "ssd"))
    engine.flush()
    _, host = engine.host_tokens()
    wanted = [prompts[number % 6][: (PAGES - number // 6 % 12) * PAGE + 1] for number in range(100)]

    async def flood(client: AgentClient) -> set[int]:
        orders = await asyncio.gather(*(client.prefetch(tokens, seconds=20) for tokens in wanted))
        assert sum(order.cut for order in orders if order.ticket) > host / 2
        return {order.ticket for order in orders if order.ticket}

    async def ended(client: AgentClient) -> list[wire.Progress]:
        return [await brought(client, ticket) for ticket in tickets]

    async def bring(client: AgentClient) -> int:
        order = await client.prefetch(spare, seconds=8)
        progress = await brought(client, order.ticket)
        await client.cancel(order.ticket)
        return progress.loaded

    tickets = engine.ask(flood)
    for number in (5, 0, 3):
        assert engine.complete(prompts[number]).tokens == texts[number]
    assert 0 < sum(one.loaded for one in engine.ask(ended)) <= host / 2
    until(lambda: engine.ask(bring) == PAGES * PAGE)  # once their time is over there is room again
    assert (engine.stats().tickets, engine.metrics().get("hpkv_errors")) == (0, 0)


def test_what_sglang_has_itself_stays_on_ssd(engine: TieredSglang) -> None:
    """However much comes after it: the hottest pages go last, though nobody asks for them there."""
    kept, *others = (prompt(2100 + number, PAGES * PAGE + 1) for number in range(SSD_PAGES // PAGES + 3))
    for tokens in others:
        engine.complete(kept, most=1)
        engine.complete(tokens, most=1)
        until(lambda tokens=tokens: names(tokens) <= listed(engine.agent, "ssd"))  # type: ignore[misc]
    assert names(kept) <= listed(engine.agent, "ssd")
    assert not names(others[0]) <= listed(engine.agent, "ssd"), "more came than there is room for"


def test_settings_that_cannot_be_stop_it_before_the_model_loads(engine: TieredSglang) -> None:
    environment = {**engine.environment, "HPKV_CACHE__WRITE": "sometimes"}
    command = [*engine.command, f"--port={free_port()}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "SettingsError: HPKV_CACHE__WRITE: Input should be 'through', 'back' or 'selective'" in told
    assert "Load weight" not in told


def test_it_stays_at_the_gateway_while_its_storage_is_detached(engine: TieredSglang, lessor: Gateway) -> None:
    engine.detach()
    renewed = len(lessor.heard) + 2
    until(lambda: len(lessor.heard) >= renewed)
    engine.attach("timeout")
    assert {one.method for one in lessor.heard} == {"POST"}


def test_nothing_is_left_when_it_is_told_to_end(
    engine: TieredSglang, place: Place, lessor: Gateway, left_before: set[Path]
) -> None:
    crew, _ = place
    assert list(crew.sockets.glob("load.agent*"))
    stored = prompt(3000, PAGES * PAGE + 1)
    engine.complete(stored, most=1)
    engine.wait_stored(stored)
    engine.signal(signal.SIGTERM)
    until(lambda: not engine.running)
    assert "Traceback" not in engine.log_end(100)
    assert lessor.heard[-1].method == "DELETE"
    assert not list(crew.sockets.glob("load.agent*"))
    assert set(Path("/dev/shm").glob("*hpkv*")) <= left_before


def test_another_dtype_shares_nothing(engine: TieredSglang, place: Place) -> None:
    """On the same folder and the same store. The last test: the first engine has ended by then."""
    crew, folder = place
    tokens = prompt(3000, PAGES * PAGE + 1)
    engine.kill()
    other = TieredSglang("load", folder, crew, dtype="bfloat16", small=SMALL)
    with ready(other):
        assert other.match(tokens) == []
        assert not listed(other.agent, "ssd") | listed(other.agent, "shared")
        first = other.complete(tokens)
        assert first.cached == 0
        other.wait_stored(tokens)
        other.flush()
        again = other.complete(tokens)
        assert (again.tokens, again.storage) == (first.tokens, PAGES * PAGE)
