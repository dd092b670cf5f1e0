"""The gateway sees what lies below two real vLLM engines, and has it brought up before a request arrives."""

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import zmq

from cache.prefix import prefix_keys, seed
from engine_adapters import wire
from engine_adapters.agent import keys
from engine_adapters.agent.client import AgentClient
from engine_adapters.errors import EngineError
from engine_adapters.events import Tier
from tests.e2e.agents import ask, brought, following, spans
from tests.e2e.front import Front, Said
from tests.e2e.front import gateway as front_of
from tests.e2e.tiered import BLOCK, FLAGS, PAGE_BYTES, Tiered, crew_of, prompt
from tests.engines import MODEL, Pool, ready
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PAGES = 8
TOKENS = PAGES * BLOCK
HOST_PAGES = 64


class Engines(NamedTuple):
    """`a` has all tiers, and an agent that asks for keys; `b` has no ssd, and runs one request at a time."""

    a: Tiered
    b: Tiered
    keys: Path


@pytest.fixture(scope="module")
def started(engine_pool: Pool) -> Iterator[Engines]:
    with crew_of("prefetch", engine_pool) as (crew, folder):
        for name in ("engine", "gateway"):
            keys.make(folder / name)
        guarded = {
            "HPKV_CACHE__AGENT__KEY_FILE": str(folder / "engine" / "secret.key"),
            "HPKV_CACHE__AGENT__CLIENTS_FILE": str(folder / "gateway" / "public.key"),
        }
        tiers = {"host": HOST_PAGES * (PAGE_BYTES + 4096), "shared": {"url": str(folder / "shared")}}
        ssd = {"path": str(folder / "ssd"), "cap": "1GiB", "free_floor": 0}
        cores = sorted(os.sched_getaffinity(0))
        a = Tiered("a", folder, crew, {**tiers, "ssd": ssd}, environment=guarded, bind=str(cores[-1]))
        b = Tiered("b", folder, crew, tiers, (*FLAGS, "--max-num-seqs=1"), bind=str(cores[0]))
        with ready(a, b):
            yield Engines(a, b, folder)


@pytest.fixture
def engines(started: Engines) -> Engines:
    """Both well, and their memory empty, whatever the test before did."""
    for engine in (started.a, started.b):
        engine.heal()
        engine.disturb()
        forget(engine)
    return started


@pytest.fixture
def front(engines: Engines, tmp_path: Path) -> Iterator[Front]:
    """A gateway before both."""
    with gateway(engines, engines[:2], tmp_path) as one:
        yield one


def gateway(
    engines: Engines, replicas: Sequence[Tiered], folder: Path, **sections: Any
) -> contextlib.AbstractContextManager[Front]:
    """One that has the key to the agent of `a`."""
    fields = {
        "agent_key": (engines.keys / "engine" / "public.key").read_text().strip(),
        "agent_secret_file": str(engines.keys / "gateway" / "secret.key"),
    }
    return front_of(replicas, folder, {"a": fields}, **sections)


def forget(engine: Tiered) -> None:
    """Empty its memory; it tells of that with the next request's events."""
    engine.forget(host=True)
    engine.metrics()


def key_of(engines: Engines) -> keys.Keys:
    """What `a` lets in."""
    return keys.read_keys(engines.keys / "gateway" / "secret.key", engines.keys / "engine" / "public.key")


# ---- one serves what the other has stored -----------------------------------------------------------


def test_b_serves_what_a_put_on_shared_storage(engines: Engines, front: Front) -> None:
    tokens = prompt(100, TOKENS + 1)
    first = engines.a.complete(tokens)
    engines.a.settled()
    until(lambda: front.matches(tokens) == {"a": {"gpu": TOKENS}, "b": {"shared": TOKENS}})
    engines.a.stop()
    until(lambda: set(front.matches(tokens)) == {"b"})
    before = engines.b.metrics().loaded()
    assert front.complete(tokens) == Said("b", first.tokens, TOKENS, {"shared": TOKENS})
    loaded = [now - then for now, then in zip(engines.b.metrics().loaded(), before, strict=True)]
    assert sum(loaded) == TOKENS


# ---- what is brought up meanwhile -------------------------------------------------------------------


class Busy:
    """A long answer on one engine, asked past the gateway: it has begun when this is entered, and is broken
    off when this is left."""

    TOKENS = 900
    """Half a minute's, so that it is still under way whenever a test looks."""

    def __init__(self, engine: Tiered, number: int) -> None:
        self._engine = engine
        self._number = number
        self._begun, self._enough = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Busy":
        self._thread.start()
        assert self._begun.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._thread.join()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        body = {
            "model": MODEL,
            "prompt": prompt(self._number, 2 * BLOCK),
            "max_tokens": self.TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        with self._engine.client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self._begun.set()
                if self._enough.is_set():
                    break


def waiting(engine: Tiered) -> bool:
    """Whether a request waits for its turn there."""
    page = engine.client.get("/metrics").text
    counts = re.findall(r"^vllm:num_requests_waiting\{.*\} (\S+)$", page, re.MULTILINE)
    return sum(map(float, counts)) > 0


@pytest.mark.parametrize("prefetch", [True, False])
def test_prefetch_overlaps_the_wait_for_another_prompt(
    engines: Engines, tmp_path: Path, prefetch: bool
) -> None:
    """While `b` gives a long answer it looks at no other request; its agent can load for one."""
    b = engines.b
    tokens = prompt(110 + 10 * prefetch, TOKENS + 1)
    first = b.complete(tokens)
    b.settled()
    forget(b)
    wanted = set(prefix_keys(tokens[:TOKENS], BLOCK, seed(None, None)).tolist())
    with (
        gateway(engines, [b], tmp_path, routing={"prefetch": prefetch}) as front,
        following(b.agent) as followed,
        ThreadPoolExecutor(1) as client,
    ):
        host = followed.held[Tier.HOST]
        until(lambda: front.matches(tokens) == {"b": {"shared": TOKENS}})
        b.disturb(shared_read_seconds=0.02)
        with Busy(b, 170 + 10 * prefetch) as busy:
            asked = client.submit(front.complete, tokens)
            until(lambda: waiting(b))
            if prefetch:
                until(lambda: wanted <= host)
            else:
                time.sleep(2)  # in which all would have come many times over
                assert not any(key in host for key in wanted)
            assert busy.running
        said = asked.result()
        until(lambda: wanted <= host)
    assert (said.tokens, said.cached) == (first.tokens, TOKENS)


# ---- what is remembered -----------------------------------------------------------------------------


def test_what_restarts_give_back(engines: Engines, tmp_path: Path) -> None:
    a, b = engines.a, engines.b
    prompts = [prompt(number, TOKENS + 1) for number in (130, 140, 150)]
    on_ssd, in_host, in_gpu = prompts
    a.complete(on_ssd)
    a.settled()
    a.forget(host=True)
    a.complete(in_host)
    a.settled()
    a.forget()
    a.complete(in_gpu)
    a.settled()

    def shows(front: Front, *tiers: str) -> bool:
        wanted = [{"a": {tier: TOKENS}, "b": {"shared": TOKENS}} for tier in tiers]
        return [front.matches(tokens) for tokens in prompts] == wanted

    with gateway(engines, [a, b], tmp_path) as front:
        until(lambda: shows(front, "ssd", "host", "gpu"))
    with gateway(engines, [a, b], tmp_path) as front:  # it knows nothing of the first one
        until(lambda: shows(front, "ssd", "host", "gpu"))
        assert front.matches(prompt(160, TOKENS + 1)) == {"a": {}, "b": {}}
        a.restart()
        until(lambda: shows(front, "ssd", "ssd", "ssd"), seconds=120)


# ---- tenants ----------------------------------------------------------------------------------------


def test_a_tenants_pages_are_nobody_elses(engines: Engines, front: Front) -> None:
    tokens = prompt(300, TOKENS + 1)
    engines.a.complete(tokens, cache_salt="one")
    engines.a.settled()
    until(lambda: front.matches(tokens, cache_salt="one") == {"a": {"gpu": TOKENS}, "b": {"shared": TOKENS}})

    async def see(client: AgentClient, salt: str | None) -> tuple[int, int, int]:
        found = await client.match(tokens, salt)
        order = await client.prefetch(tokens, salt, seconds=1)
        kept = await client.pin(tokens, salt, seconds=1)
        return len(found.spans), order.ticket, kept.tokens

    for salt in ("two", None):
        fields = {"cache_salt": salt} if salt else {}
        assert front.matches(tokens, **fields) == {"a": {}, "b": {}}
        assert ask(engines.a.agent, lambda client, salt=salt: see(client, salt), key_of(engines)) == (0, 0, 0)
        assert ask(engines.b.agent, lambda client, salt=salt: see(client, salt)) == (0, 0, 0)
    said = front.complete(tokens, cache_salt="two")
    assert (said.cached, said.predicted) == (0, {})
    own, _, kept = ask(engines.a.agent, lambda client: see(client, "one"), key_of(engines))
    assert (own, kept) == (1, TOKENS)


# ---- under pressure, and without an agent -----------------------------------------------------------


def test_prefetches_larger_than_host(engines: Engines, front: Front) -> None:
    """A hundred, of six lengths of 17 prompts that lie on the ssd: 136 pages, and host has 64."""
    a = engines.a
    prompts = [prompt(1000 + 10 * number, TOKENS + 1) for number in range(17)]
    texts = [a.complete(tokens).tokens for tokens in prompts]
    a.settled()
    a.forget(host=True)

    async def flood(client: AgentClient) -> list[int]:
        first = await client.prefetch(prompts[0], seconds=60)
        assert (await brought(client, first.ticket)).loaded == TOKENS
        kept = await client.pin(prompts[0], seconds=600)
        assert kept.tokens == TOKENS
        await client.cancel(first.ticket)
        orders = await asyncio.gather(
            *(
                client.prefetch(tokens[: pages * BLOCK + 1], seconds=10)
                for pages in range(PAGES, PAGES - 6, -1)
                for tokens in prompts
            )
        )
        return [order.ticket for order in orders if order.ticket]

    assert ask(a.agent, flood, key_of(engines))
    for number in (16, 0, 8):
        said = front.complete(prompts[number])
        assert said.tokens == texts[number]

    async def unpin(client: AgentClient) -> list[tuple[str, int]]:
        found = spans(await client.match(prompts[0]))
        await client.unpin(prompts[0])
        return found

    assert ask(a.agent, unpin, key_of(engines)) == [("host", TOKENS)]
    until(lambda: a.metrics().held == (0, 0, 0))
    assert a.metrics().get("hpkv_errors") == 0


@pytest.mark.parametrize("mute", [True, False], ids=["mute", "gone"])
def test_requests_go_on_without_agents(engines: Engines, tmp_path: Path, mute: bool) -> None:
    address = f"ipc://{tmp_path}/nobody"
    tokens = prompt(190 + 10 * mute, TOKENS + 1)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as deaf:
        if mute:
            deaf.bind(address)
        elsewhere = {name: {"agent": address} for name in ("a", "b")}
        with front_of(engines[:2], tmp_path, elsewhere) as front:
            first = front.complete(tokens)
            until(lambda: {"gpu": TOKENS} in front.matches(tokens).values())
            again = front.complete(tokens)
    assert again == Said(first.replica, first.tokens, TOKENS, {"gpu": TOKENS})


def test_strangers_and_nonsense_are_turned_away(engines: Engines) -> None:
    async def hello(client: AgentClient, timeout_s: float | None = None) -> str:
        return (await client.hello(timeout_s)).model

    for stranger in (None, key_of(engines)._replace(secret=zmq.curve_keypair()[1])):
        with pytest.raises(EngineError):
            ask(engines.a.agent, lambda client: hello(client, 2), stranger)
    assert ask(engines.a.agent, hello, key_of(engines)) == MODEL

    hello_call = msgspec.Raw(msgspec.msgpack.encode(wire.Hello()))
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, 30_000
        socket.connect(engines.b.agent)
        socket.send(msgspec.msgpack.encode(wire.Envelope(wire.VERSION + 1, 7, hello_call)))
        answer = msgspec.msgpack.decode(socket.recv(), type=wire.Envelope)
        assert msgspec.msgpack.decode(answer.body, type=wire.Refused).code == "version"
        for nonsense in (b"", b"\xc1", os.urandom(4096), bytes(wire.MAX_FRAME + 1)):
            socket.send(nonsense)
            socket.send_multipart([nonsense, nonsense])
    assert ask(engines.b.agent, hello) == MODEL
    tokens = prompt(210, TOKENS + 1)
    assert engines.b.complete(tokens).tokens == engines.a.complete(tokens).tokens
