"""A vLLM engine whose `gpu` and `host` tiers are far too small, under load."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.load import many_turns
from tests.e2e.tiered import BLOCK, FLAGS, PAGE_BYTES, Tiered, crew_of, prompt
from tests.engines import Pool, ready
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

HOST_PAGES = 40
SSD_PAGES = 200
MIB = 1 << 20


@pytest.fixture(scope="module")
def engine(engine_pool: Pool) -> Iterator[Tiered]:
    with crew_of("load", engine_pool) as (crew, folder):
        tiers = {
            "host": HOST_PAGES * PAGE_BYTES,
            "ssd": {"path": str(folder / "ssd"), "cap": SSD_PAGES * (PAGE_BYTES + 4096), "free_floor": 0},
        }
        started = Tiered("load", folder, crew, tiers, flags=(*FLAGS[:-1], "--num-gpu-blocks-override=40"))
        with ready(started):
            yield started


def test_a_host_tier_full_of_leased_pages_drops_stores(engine: Tiered) -> None:
    for number in range(5):
        engine.complete(prompt(number, 10 * BLOCK), most=2)
    engine.settled()
    tokens = prompt(10, 8 * BLOCK + 1)
    dropped = engine.metrics().get("hpkv_dropped_pages", tier="host")
    first = engine.complete(tokens, kv_transfer_params={"hpkv_test_pin_all": 30.0})
    now = engine.metrics()
    assert now.get("hpkv_dropped_pages", tier="host") >= dropped + 8
    assert now.get("hpkv_held_pages") == HOST_PAGES
    engine.forget()
    again = engine.complete(tokens)
    assert (again.tokens, again.cached) == (first.tokens, 0)
    until(lambda: engine.metrics().held == (0, 0, 0))


@pytest.mark.parametrize("seconds", [60.0, pytest.param(600.0, marks=pytest.mark.soak)])
def test_many_turns(engine: Tiered, seconds: float) -> None:
    load = many_turns(engine, seconds, alike=6)
    assert load.turns >= seconds / 10
    assert load.grown < 48 * MIB, f"memory grew by {load.grown / MIB:.0f} MiB"

    until(lambda: engine.metrics().held == (0, 0, 0))
    metrics = engine.settled()
    assert metrics.get("hpkv_errors") == 0
    assert metrics.get("hpkv_damaged_pages") == metrics.get("hpkv_failed_pages") == 0
    assert metrics.get("hpkv_evicted_tokens", tier="host") > 0
    assert metrics.loaded()[1] > 0
    came = metrics.get("hpkv_stored_tokens", tier="host") + metrics.get("hpkv_read_tokens")
    went = metrics.get("hpkv_evicted_tokens", tier="host")
    assert metrics.get("hpkv_tier_bytes", tier="host") == (came - went) // BLOCK * PAGE_BYTES
    assert metrics.get("hpkv_tier_bytes", tier="ssd") <= SSD_PAGES * (PAGE_BYTES + 4096)


def test_nothing_is_left_in_shared_memory(engine: Tiered) -> None:
    """The last test: it ends the engine."""
    engine.signal(signal.SIGTERM)
    until(lambda: not engine.running)
    assert not list(Path("/dev/shm").glob("vllm_offload_hpkv-*"))
