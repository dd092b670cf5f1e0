"""SGLang with our tiers below its own: text stays right, faults are survived, its agent brings pages up.
SmolLM2 on CPU."""

import contextlib
import errno
import functools
import os
import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
import zmq

from engine_adapters import wire
from engine_adapters.agent.client import AgentClient
from engine_adapters.errors import AgentRefused
from engine_adapters.up.crew import Crew
from tests.e2e.agents import brought, listed, spans
from tests.e2e.front import gateway
from tests.e2e.tiered import Tiered, changed_rows, crew_of, flip, prompt
from tests.e2e.tiered_sglang import PAGE, PAGE_BYTES, STORAGE, THRESHOLD, Answer, TieredSglang, names
from tests.engines import HOME, LORA_FOLDERS, LORAS, MODEL, Pool, ready
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LOAD_SECONDS = 3.0
PAGES = 16
PROMPTS = [prompt(1100 + number, PAGES * PAGE + 1 + number) for number in range(8)]
SALTED = prompt(1150, PAGES * PAGE + 1)
ALL = len(PROMPTS) * PAGES * PAGE

Place = tuple[Crew, Path]


@pytest.fixture(scope="module")
def place(engine_pool: Pool) -> Iterator[Place]:
    with crew_of("tiers-sglang", engine_pool) as made:
        yield made


@pytest.fixture(scope="module")
def engine(place: Place) -> Iterator[TieredSglang]:
    crew, folder = place
    started = TieredSglang("first", folder, crew, {"HPKV_CACHE__LOAD_S": str(LOAD_SECONDS)})
    with ready(started):
        yield started


@pytest.fixture(scope="module")
def cold(engine: TieredSglang) -> list[Answer]:
    """What the engine says to all prompts, computing each. More than its device holds at a time."""
    answers = [engine.complete(tokens) for tokens in PROMPTS]
    assert not any(answer.cached for answer in answers)
    engine.wait_stored(*PROMPTS)
    return answers


def check(answers: list[Answer], cold: list[Answer], *, source: str) -> None:
    """All say the same as cold, from pages that lay in one place."""
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in cold]
    assert {(getattr(answer, source), answer.cached) for answer in answers} == {(PAGES * PAGE, PAGES * PAGE)}


# ---- text --------------------------------------------------------------------------------------------


def test_text_after_a_hit_in_host(engine: TieredSglang, cold: list[Answer]) -> None:
    check([engine.complete(tokens) for tokens in PROMPTS], cold, source="host")
    assert engine.loaded() == (0, 0)


def test_text_after_a_hit_in_ssd(engine: TieredSglang, cold: list[Answer]) -> None:
    engine.flush()
    check([engine.complete(tokens) for tokens in PROMPTS], cold, source="storage")
    assert engine.loaded() == (ALL, 0)


def test_text_and_what_gateways_know_after_a_restart(
    engine: TieredSglang, cold: list[Answer], tmp_path: Path
) -> None:
    on_ssd = [{"first": {"ssd": PAGES * PAGE}}] * len(PROMPTS)
    with gateway([engine], tmp_path) as front:
        until(lambda: front.matches(PROMPTS[-1]) == {"first": {"gpu": PAGES * PAGE}})
        engine.restart()
        until(lambda: [front.matches(tokens) for tokens in PROMPTS] == on_ssd, 120)
    with gateway([engine], tmp_path) as front:  # it has heard nothing of the stream so far
        until(lambda: [front.matches(tokens) for tokens in PROMPTS] == on_ssd)
    check([engine.complete(tokens) for tokens in PROMPTS], cold, source="storage")
    assert engine.loaded() == (ALL, 0)


def test_text_after_a_hit_in_shared(engine: TieredSglang, cold: list[Answer]) -> None:
    engine.flush()
    engine.ask(lambda client: client.clear(tier="ssd"))
    before = engine.loaded()
    check([engine.complete(tokens) for tokens in PROMPTS], cold, source="storage")
    after = engine.loaded()
    assert (after[0] - before[0], after[1] - before[1]) == (0, ALL)


def test_text_after_a_hit_in_three_tiers(engine: TieredSglang, cold: list[Answer]) -> None:
    tokens = PROMPTS[0]
    engine.flush()
    engine.complete(tokens[: 8 * PAGE + 1], most=1)
    for other in PROMPTS[1:]:
        engine.complete(other, most=1)  # out of the device with it
    engine.complete(tokens[: 4 * PAGE + 1], most=1)
    again = engine.complete(tokens)
    assert again == Answer(cold[0].tokens, 4 * PAGE, 4 * PAGE, 8 * PAGE)


def test_the_threshold_decides_about_what_storage_adds(engine: TieredSglang) -> None:
    for number, pages, cached in ((1200, THRESHOLD // PAGE - 1, 0), (1201, THRESHOLD // PAGE, THRESHOLD)):
        tokens = prompt(number, pages * PAGE + 1)
        first = engine.complete(tokens)
        engine.wait_stored(tokens)
        engine.flush()
        again = engine.complete(tokens)
        assert (again.storage, again.tokens) == (cached, first.tokens)


# ---- whose pages -------------------------------------------------------------------------------------


def test_salts_share_nothing_and_a_tenant_is_cleared(engine: TieredSglang) -> None:
    first = engine.complete(SALTED, cache_salt="a tenant")
    engine.wait_stored(SALTED, salt="a tenant")
    engine.flush()
    assert [engine.complete(SALTED, **way).cached for way in ({}, {"cache_salt": "another"})] == [0, 0]
    engine.wait_stored(SALTED, salt="another")
    engine.flush()
    again = engine.complete(SALTED, cache_salt="a tenant")
    assert (again.storage, again.tokens) == (PAGES * PAGE, first.tokens)
    assert engine.ask(lambda client: client.clear(salt="another")).pages == 2 * PAGES
    assert engine.ask(lambda client: client.clear(salt="a tenant")).pages == 2 * PAGES  # in ssd and shared
    engine.flush()
    assert engine.complete(SALTED, cache_salt="a tenant").cached == 0


def test_tenants_reach_their_own_pages_alone_through_agent_and_gateway(
    engine: TieredSglang, tmp_path: Path
) -> None:
    tokens, whole = prompt(1160, PAGES * PAGE + 1), PAGES * PAGE
    engine.complete(tokens, most=1, cache_salt="one")
    engine.wait_stored(tokens, salt="one")
    engine.flush()

    async def see(client: AgentClient, salt: str | None) -> tuple[int, int, int]:
        found = await client.match(tokens, salt)
        order = await client.prefetch(tokens, salt, seconds=1)
        kept = await client.pin(tokens, salt, seconds=1)
        return len(found.spans), order.ticket, kept.tokens

    with gateway([engine], tmp_path) as front:
        until(lambda: front.matches(tokens, cache_salt="one") == {"first": {"ssd": whole}})
        for salt in ("two", None):
            assert engine.ask(functools.partial(see, salt=salt)) == (0, 0, 0)
            told = front.cache("prefetch", tokens, salt)
            assert (sum(told["found"].values()), told["loading"]) == (0, 0)
            assert front.cache("pin", tokens, salt)["pinned"] == 0
            assert front.matches(tokens, **({"cache_salt": salt} if salt else {})) == {"first": {}}
        pin = front.cache("pin", tokens, "one")
        assert (pin["pinned"], engine.stats().leases) == (whole, 1)
        told = front.cache("prefetch", tokens, "one")
        assert (told["found"]["ssd"], told["loading"]) == (whole, whole)
        until(lambda: front.matches(tokens, cache_salt="one") == {"first": {"host": whole}})
        assert engine.complete(tokens, cache_salt="two").cached == 0
        assert engine.complete(tokens, cache_salt="one").host == whole
        assert front.client.delete(f"/v1/cache/pin/{pin['id']}").status_code == 200
    assert engine.stats().leases == 0


# ---- the agent ---------------------------------------------------------------------------------------


def test_a_prefetched_prompt_is_a_host_hit(engine: TieredSglang, cold: list[Answer]) -> None:
    tokens = PROMPTS[1]

    async def bring(client: AgentClient) -> wire.Order:
        order = await client.prefetch(tokens, seconds=60)
        assert order.ticket
        assert await brought(client, order.ticket) == wire.Progress(
            tokens=PAGES * PAGE, loaded=PAGES * PAGE, running=False
        )
        return order

    ordered = engine.stats().prefetches
    for flushed in (True, False):
        engine.flush()
        order = engine.ask(bring)
        assert spans(order)[-1][1] == PAGES * PAGE
        if flushed:
            engine.flush()  # what is kept goes, too
            engine.ask(lambda client, order=order: client.cancel(order.ticket))  # type: ignore[misc]
    assert engine.complete(tokens) == Answer(cold[1].tokens, 0, PAGES * PAGE, 0)
    engine.ask(lambda client: client.cancel(order.ticket))
    assert engine.stats().tickets == 0
    assert engine.stats().prefetches == ordered + 2


def test_a_request_shares_a_prefetch_that_is_under_way(engine: TieredSglang, cold: list[Answer]) -> None:
    engine.flush()
    engine.disturb(read_seconds=0.1, shared_read_seconds=0.1)
    before = engine.loaded()
    order = engine.ask(lambda client: client.prefetch(PROMPTS[6], seconds=60))
    assert order.ticket
    again = engine.complete(PROMPTS[6])
    engine.disturb()
    assert (again.tokens, again.cached) == (cold[6].tokens, PAGES * PAGE)
    assert sum(engine.loaded()) - sum(before) == PAGES * PAGE, "each page was read once"
    engine.ask(lambda client: client.cancel(order.ticket))


def test_who_it_is_and_what_it_holds(engine: TieredSglang, cold: list[Answer]) -> None:
    identity = engine.ask(lambda client: client.hello())
    assert (identity.engine, identity.engine_version, identity.model) == ("sglang", "0.5.23", MODEL)
    assert (identity.page_tokens, identity.threshold) == (PAGE, THRESHOLD)
    assert (identity.events, identity.replay) == (engine.events, engine.replay)
    assert {"ssd", "shared"} <= set(identity.tiers)
    assert names(PROMPTS[2]) <= listed(engine.agent, "ssd"), "also what it has brought there from shared"
    assert engine.match(PROMPTS[2]) == [("ssd", PAGES * PAGE)]


def test_the_gateway_sees_what_lies_below_and_has_it_brought_up(
    engine: TieredSglang, cold: list[Answer], tmp_path: Path
) -> None:
    tokens, whole = PROMPTS[5], PAGES * PAGE
    body = {"model": MODEL, "prompt": tokens}
    with gateway([engine], tmp_path) as front:
        engine.flush()
        until(lambda: front.matches(tokens) == {"first": {"ssd": whole}})
        front.cache("prefetch", tokens)
        until(lambda: front.matches(tokens) == {"first": {"host": whole}})
        assert engine.complete(tokens) == Answer(cold[5].tokens, 0, whole, 0)
        engine.flush()
        until(lambda: front.matches(tokens) == {"first": {"ssd": whole}})
        answer = front.client.post("/v1/completions", json={**body, "max_tokens": 1})
        assert f"ssd={whole}" in answer.headers["x-hpkv-cached-tokens"]
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == whole
        ended = r'hpkv_gateway_prefetches_ended_total\{outcome="(useful|late)",replica="first"\} 1.0'
        until(lambda: re.search(ended, front.client.get("/metrics").text) is not None)


def test_its_metrics_tell_of_the_tiers(engine: TieredSglang, cold: list[Answer]) -> None:
    engine.flush()
    before = engine.settled()
    assert engine.complete(PROMPTS[4]).storage == PAGES * PAGE
    after = engine.settled()
    assert after.get("hpkv_loaded_tokens") == before.get("hpkv_loaded_tokens") + PAGES * PAGE
    assert after.get("hpkv_errors") == 0
    assert after.get("hpkv_tier_bytes") > 0


def test_nonsense_and_a_mute_agent_hold_nobody_up(
    engine: TieredSglang, cold: list[Answer], tmp_path: Path
) -> None:
    address = f"ipc://{tmp_path}/nobody"
    with zmq.Context() as context, context.socket(zmq.DEALER) as noisy, context.socket(zmq.ROUTER) as deaf:
        noisy.linger = 0
        noisy.connect(engine.agent)
        for nonsense in (b"", b"\xc1", os.urandom(4096), bytes(wire.MAX_FRAME + 1)):
            noisy.send(nonsense)
        assert engine.ask(lambda client: client.hello()).engine == "sglang"
        deaf.bind(address)
        with gateway([engine], tmp_path, {"first": {"agent": address}}) as front:
            body = {"model": MODEL, "prompt": PROMPTS[7], "max_tokens": 1}
            assert front.client.post("/v1/completions", json=body).status_code == 200
            until(lambda: front.matches(PROMPTS[7]) == {"first": {"gpu": PAGES * PAGE}})
    assert engine.complete(PROMPTS[7]).tokens == cold[7].tokens


# ---- faults ------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_found_and_recomputed(engine: TieredSglang) -> None:
    until(lambda: engine.stats().tickets == 0)  # nothing is written that isn't this prompt's
    table = engine.ssd / "00/table"
    before = table.read_bytes()
    tokens = prompt(1300, PAGES * PAGE + 1)
    first = engine.complete(tokens)
    engine.wait_stored(tokens)
    flip(engine.ssd / "00/pages", changed_rows(before, table.read_bytes())[4], PAGE_BYTES)
    engine.flush()
    errors = engine.stats().tiers["ssd"].errors
    again = engine.complete(tokens)
    assert again.tokens == first.tokens
    assert again.cached < PAGES * PAGE
    assert engine.stats().tiers["ssd"].errors == errors + 1


def test_full_storage_drops_pages_and_nothing_else(engine: TieredSglang) -> None:
    tokens = prompt(1310, PAGES * PAGE + 1)
    before = engine.settled()
    engine.disturb(write_errno=errno.ENOSPC, shared_write_errno=errno.ENOSPC)
    first = engine.complete(tokens)
    lost = {tier: before.not_stored(tier) + PAGES for tier in ("ssd", "shared")}
    until(lambda: all(engine.metrics().not_stored(tier) >= pages for tier, pages in lost.items()))
    engine.flush()
    assert engine.complete(tokens) == first, "it is computed again"
    engine.flush()
    engine.disturb()
    assert engine.complete(tokens) == first
    until(lambda: names(tokens) <= listed(engine.agent, "ssd"))
    engine.flush()
    again = engine.complete(tokens)
    assert (again.tokens, again.storage) == (first.tokens, PAGES * PAGE)
    assert engine.metrics().get("hpkv_errors") == 0


def test_requests_abandoned_at_random_moments_give_everything_back(
    engine: TieredSglang, cold: list[Answer]
) -> None:
    chance = random.Random(5)
    moments = [chance.uniform(0.001, 0.6) for _ in range(200)]

    def abandon(number: int) -> None:
        """A request, of a prompt in storage mostly; a fifth of them with a prefetch that is given up, too."""
        tokens = prompt(1600 + number, 6 * PAGE) if number % 4 == 0 else PROMPTS[number % len(PROMPTS)]
        if number % 5 == 0:
            order = engine.ask(lambda client: client.prefetch(PROMPTS[number // 5 % 8], seconds=60))
            time.sleep(moments[number] / 4)
            engine.ask(lambda client: client.cancel(order.ticket))
        engine.abandon(tokens, moments[number])

    engine.disturb(read_seconds=0.005)
    with ThreadPoolExecutor(8) as clients:
        for some in range(0, len(moments), 25):
            engine.flush()
            list(clients.map(abandon, range(some, some + 25)))
    engine.disturb()

    def whole() -> bool:
        engine.flush()
        answers = [engine.complete(tokens) for tokens in PROMPTS[:3]]
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in cold[:3]]
        return {answer.storage for answer in answers} == {PAGES * PAGE}

    until(whole, 120)
    engine.flush()
    until(lambda: (engine.stats().tickets, engine.stats().leases) == (0, 0))
    assert engine.host_tokens()[0] == 0, "each page of SGLang's is free again"
    assert engine.metrics().get("hpkv_errors") == 0


@pytest.mark.parametrize("policy", ["best_effort", "timeout", "wait_complete"])
def test_a_hanging_store_holds_nobody_up_whatever_the_policy(
    engine: TieredSglang, cold: list[Answer], policy: str
) -> None:
    """And storage goes and comes back while the engine runs."""
    engine.detach()
    engine.flush()
    assert engine.complete(PROMPTS[3]) == cold[3]
    engine.attach(policy)
    engine.flush()
    engine.ask(lambda client: client.clear(tier="ssd"))
    engine.disturb(shared_read_seconds=-1, shared_write_seconds=-1)
    begun = time.monotonic()
    assert engine.complete(PROMPTS[3]).tokens == cold[3].tokens
    assert time.monotonic() - begun < 3 * LOAD_SECONDS + 20, "the deadline, and time to recompute"
    engine.disturb()

    def recovered() -> bool:
        engine.flush()
        again = engine.complete(PROMPTS[3])
        assert again.tokens == cold[3].tokens
        return again.storage == PAGES * PAGE or policy == "best_effort"  # which waits for nothing

    until(recovered, 120)


def test_storage_is_asked_for_with_the_admin_key_alone(engine: TieredSglang) -> None:
    assert httpx2.delete(f"{engine.url}{STORAGE}", timeout=30).status_code in (401, 403)


def test_killed_while_storing(engine: TieredSglang) -> None:
    prompts = [prompt(1400 + number, PAGES * PAGE + 1) for number in range(4)]
    engine.disturb(write_seconds=0.1)
    stored = engine.stats().tiers["ssd"].stored_tokens

    def ask(tokens: list[int]) -> None:
        with contextlib.suppress(httpx2.HTTPError):
            engine.client.post(
                "/generate", json={"input_ids": tokens, "sampling_params": {"max_new_tokens": 1}}
            )

    with ThreadPoolExecutor(len(prompts)) as clients:
        asking = [clients.submit(ask, tokens) for tokens in prompts]
        until(lambda: engine.stats().tiers["ssd"].stored_tokens > stored + PAGES * PAGE)
        engine.kill()
        wait(asking)
    engine.disturb()
    engine.start()
    engine.wait_ready()
    fresh = [engine.complete(tokens, cache_salt=f"fresh {n}") for n, tokens in enumerate(prompts)]
    again = [engine.complete(tokens) for tokens in prompts]
    assert [answer.tokens for answer in again] == [answer.tokens for answer in fresh]
    assert any(answer.storage for answer in again), "pages were found after the kill"
    assert engine.stats().tiers["ssd"].errors == 0, "no partial page was visible"


def test_replaced_weights_take_nothing_from_storage(
    engine: TieredSglang, cold: list[Answer], tmp_path: Path
) -> None:
    """The engine's last test: only a new start gives it tiers below host again."""
    model, tokens = str(HOME / "models" / MODEL), PROMPTS[5]
    engine.flush()
    assert engine.complete(tokens).storage == PAGES * PAGE
    until(lambda: engine.stats().tickets == 0)
    with gateway([engine], tmp_path) as front:
        answer = engine.client.post("/update_weights_from_disk", json={"model_path": model})
        assert answer.status_code == 200, answer.text
        until(lambda: model in front.client.get("/v1/models").text)  # which is its name now
        assert engine.complete(tokens) == Answer(cold[5].tokens, 0, 0, 0)
        until(lambda: front.matches(tokens, model=model) == {"first": {"gpu": PAGES * PAGE}})
        assert front.matches(PROMPTS[6], model=model) == {"first": {}}, "it would load nothing"
    with pytest.raises(AgentRefused, match="weights were replaced"):
        engine.match(tokens)
    engine.detach()
    with pytest.raises(AssertionError, match="weights were replaced"):
        engine.attach("timeout")


# ---- other engines on the same storage ---------------------------------------------------------------


class Others(NamedTuple):
    """What a vLLM has stored beside the first engine's pages, and a second SGLang that has come after it."""

    found_by_vllm: list[int]
    """Tokens of its first answers that vLLM has found cached."""
    of_vllm: list[int]
    """A prompt that vLLM alone has computed."""
    second: TieredSglang


@pytest.fixture(scope="module")
def others(place: Place, engine: TieredSglang, cold: list[Answer], adapters: None) -> Iterator[Others]:
    """The first engine has ended by then: there is no room for three. The second serves adapters beside the
    model, which changes nothing for the model."""
    crew, folder = place
    engine.kill()
    patient = {"HPKV_CACHE__LOOK_S": "5", "HPKV_CACHE__LOAD_S": "20"}
    ssd = {"path": str(folder / "second.ssd"), "cap": "1GiB", "free_floor": 0}
    tiers = {"host": "512MiB", "ssd": ssd, "shared": {"url": str(folder / "shared")}}
    vllm = Tiered("vllm", folder, crew, tiers, environment=patient)
    of_vllm = prompt(1500, PAGES * PAGE + 1)
    with ready(vllm):
        found = [vllm.complete(tokens).cached for tokens in (*PROMPTS[:2], of_vllm)]
        until(lambda: vllm.metrics().get("hpkv_stored_tokens", tier="shared") >= 3 * PAGES * PAGE)
    flags = ("--enable-lora", "--lora-backend=torch_native", "--lora-paths")
    paths = [f"{name}={path}" for name, path in LORA_FOLDERS.items()]
    second = TieredSglang("second", folder, crew, patient, flags=(*flags, *paths))
    with ready(second):
        yield Others(found, of_vllm, second)


def test_an_equal_replica_reads_what_is_shared(others: Others, cold: list[Answer]) -> None:
    check([others.second.complete(tokens) for tokens in PROMPTS], cold, source="storage")
    assert others.second.loaded() == (0, ALL)


def test_vllm_and_sglang_take_nothing_of_each_other(others: Others) -> None:
    assert others.found_by_vllm == [0, 0, 0]
    assert others.second.complete(others.of_vllm).cached == 0


def test_adapters_pages_are_never_stored(others: Others) -> None:
    second, tokens = others.second, prompt(1510, PAGES * PAGE + 1)
    base = second.complete(tokens)
    second.wait_stored(tokens)
    second.flush()
    stored = [tier.stored_tokens for tier in second.stats().tiers.values()]
    first = [second.complete(tokens, lora_path=name) for name in LORAS]
    assert [answer.cached for answer in first] == [0, 0]
    assert len({tuple(answer.tokens) for answer in (base, *first)}) > 1, "the adapters change the text"
    held = [second.complete(tokens, lora_path=name) for name in LORAS]
    assert [answer.cached for answer in held] == [PAGES * PAGE] * 2, "SGLang's own tiers have them"
    second.flush()
    again = [second.complete(tokens, lora_path=name) for name in LORAS]
    assert again == first
    second.flush()
    assert [tier.stored_tokens for tier in second.stats().tiers.values()] == stored
    assert second.complete(tokens) == Answer(base.tokens, 0, 0, PAGES * PAGE)
