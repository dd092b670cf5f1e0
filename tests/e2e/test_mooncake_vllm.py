"""Two real vLLM engines lend their memory to a real Mooncake master: one serves what the other stored."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cache.stores.mooncake.pool import Master
from tests.e2e.front import Front, Said, gateway
from tests.e2e.tiered import BLOCK, PAGE_BYTES, Tiered, crew_of, prompt
from tests.engines import Pool, ready
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PAGES = 8
TOKENS = PAGES * BLOCK
HOST_PAGES = 64
LOAD_SECONDS = 10.0


class Lenders(NamedTuple):
    """Two engines with `host` and the pool, and who keeps the pool."""

    a: Tiered
    b: Tiered
    master: Master


@pytest.fixture(scope="module")
def lenders(engine_pool: Pool) -> Iterator[Lenders]:
    with crew_of("mooncake", engine_pool) as (crew, folder), Master(folder / "master.log") as master:
        tiers = {
            "host": HOST_PAGES * (PAGE_BYTES + 4096),
            "shared": {"url": master.url("pages", segment="64MiB")},
        }
        patience = {"HPKV_CACHE__LOAD_S": str(LOAD_SECONDS)}
        cores = sorted(os.sched_getaffinity(0))
        a = Tiered("a", folder, crew, tiers, environment=patience, bind=str(cores[-1]))
        b = Tiered("b", folder, crew, tiers, environment=patience, bind=str(cores[0]))
        with ready(a, b):
            yield Lenders(a, b, master)


def register(front: Front, engine: Tiered) -> None:
    """Have the gateway know it for five minutes."""
    body = {
        "name": engine.name,
        "url": engine.url,
        "events": engine.events,
        "replay": engine.replay,
        "agent": engine.agent,
        "lease_s": 300,
    }
    front.client.post("/v1/replicas", json=body).raise_for_status()


def test_b_serves_what_a_put_into_the_pool(lenders: Lenders, tmp_path: Path) -> None:
    """It lies in the memory of `a`, which lives on but gets no requests any more."""
    a, b, _ = lenders
    tokens = prompt(100, TOKENS + 1)
    cold = a.complete(tokens)
    a.settled()
    with gateway([b], tmp_path) as front:
        register(front, a)
        until(lambda: front.matches(tokens) == {"a": {"gpu": TOKENS}, "b": {"shared": TOKENS}})
        front.client.delete("/v1/replicas/a").raise_for_status()
        until(lambda: front.matches(tokens) == {"b": {"shared": TOKENS}})
        before = b.metrics().get("hpkv_read_tokens", tier="shared")
        assert front.complete(tokens) == Said("b", cold.tokens, TOKENS, {"shared": TOKENS})
        assert b.metrics().get("hpkv_read_tokens", tier="shared") == before + TOKENS


def test_without_its_master_all_is_a_miss(lenders: Lenders, tmp_path: Path) -> None:
    """The last test: the master stays dead."""
    a, b, master = lenders
    tokens = prompt(110, TOKENS + 1)
    cold = a.complete(tokens)
    a.settled()
    with gateway([a, b], tmp_path) as front:
        until(lambda: front.matches(tokens) == {"a": {"gpu": TOKENS}, "b": {"shared": TOKENS}})
        master.kill()
        for ask in (front.complete, a.complete, b.complete):
            for engine in (a, b):
                engine.forget(host=True)
            begun = time.monotonic()
            said = ask(tokens)
            assert time.monotonic() - begun < 3 * LOAD_SECONDS + 20, "the deadline, and time to recompute"
            assert (said.tokens, said.cached) == (cold.tokens, 0)
    for engine in (a, b):
        assert engine.metrics().get("hpkv_errors") == 0
