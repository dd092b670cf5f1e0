"""Scenario: one long prompt, from wherever SGLang can have it: nowhere, its own host tier, our tiers below,
and its own `file` backend in their place."""

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.e2e.replicas import SSD_BYTES
from benchmarks.e2e.ttft import ttft
from benchmarks.engines import running_replicas
from benchmarks.report import Report
from benchmarks.servers import ServerFailed
from benchmarks.stats import median_interval, paired_ratios
from benchmarks.tiers.data import drop_caches
from engine_adapters.agent.client import AgentClient
from engine_adapters.replica import LocalReplica
from engine_adapters.settings import Tiers
from engine_adapters.sglang.cpu import HOST_TIER
from tests.e2e.agents import ask

TOKENS = 4000
WHOLE = (TOKENS - 1) // 16 * 16
"""Tokens of it that a cache can have: the last is always computed."""
KV_TOKENS = 6000
"""Of the device: the next prompt has no room beside the one before."""
AHEAD_S = 0.3
ROUNDS = 3
SETTLED_S = 120
WAIT = "--hicache-storage-prefetch-policy=wait_complete"

COLD, HOST, SSD = "cold", "host hit", "ssd hit after a restart"
FILE, AHEAD = "hit in SGLang's own `file` backend after a restart", "prefetched from shared 300 ms ahead"
Seconds = dict[str, list[float]]


def measure(report: Report, engine: str, folder: Path) -> None:
    """With our tiers, then with SGLang's backend: all prompts are computed, and loaded after a restart."""
    prompts = [random.Random(number).choices(range(1000, 40000), k=TOKENS) for number in range(ROUNDS)]
    took: Seconds = {}
    with _tiered(folder) as replica:
        took[COLD] = _cold(replica, prompts)
        _until_stored(replica)
        took[HOST] = [ttft(replica.port, prompt, WHOLE) for prompt in prompts]
    with _tiered(folder) as replica:
        took[SSD] = _from_disk(replica, prompts)
        took[AHEAD] = [_prefetched(replica, prompt) for prompt in prompts]
    stored = folder / "file"
    with _plain(stored) as replica:
        _cold(replica, prompts)
        _until(lambda: len(list(stored.glob("*.bin"))) >= ROUNDS * WHOLE // 16)
    with _plain(stored) as replica:
        took[FILE] = _from_disk(replica, prompts)
    _report(report, took)


@contextmanager
def _tiered(folder: Path) -> Iterator[LocalReplica]:
    ssd = {"path": str(folder / "ssd"), "cap": SSD_BYTES, "free_floor": 0}
    told = {"host": "1GB", "ssd": ssd, "shared": {"url": str(folder / "shared")}}
    with _running(tiers=Tiers.model_validate(told), extra=(WAIT,)) as replica:
        yield replica


@contextmanager
def _plain(stored: Path) -> Iterator[LocalReplica]:
    stored.mkdir(exist_ok=True)
    told = json.dumps({"file_storage_path": str(stored)})
    backend = ("--hicache-storage-backend=file", f"--hicache-storage-backend-extra-config={told}")
    with _running(extra=(*HOST_TIER, *backend, WAIT)) as replica:
        yield replica


@contextmanager
def _running(**wanted: Any) -> Iterator[LocalReplica]:
    with running_replicas(1, "sglang", kv_tokens=KV_TOKENS, **wanted) as (replica,):
        ttft(replica.port, list(range(1000, 1100)), 0)  # the first one waits for what is compiled
        yield replica


def _cold(replica: LocalReplica, prompts: list[list[int]]) -> list[float]:
    return [ttft(replica.port, prompt, 0) for prompt in prompts]


def _from_disk(replica: LocalReplica, prompts: list[list[int]]) -> list[float]:
    seconds = []
    for prompt in prompts:
        drop_caches()
        seconds.append(ttft(replica.port, prompt, WHOLE))
    return seconds


def _prefetched(replica: LocalReplica, prompt: list[int]) -> float:
    _until(lambda: httpx2.post(f"{replica.url}/flush_cache", timeout=60).is_success)
    ask(replica.agent, lambda agent: agent.clear("ssd"))
    drop_caches()

    async def order(agent: AgentClient) -> float:
        begun = time.monotonic()
        if not (await agent.prefetch(prompt[:WHOLE], seconds=60)).ticket:
            raise ServerFailed("the agent has nothing to prefetch")
        return begun

    begun = ask(replica.agent, order)
    time.sleep(max(begun + AHEAD_S - time.monotonic(), 0))
    return ttft(replica.port, prompt, WHOLE)


def _until_stored(replica: LocalReplica) -> None:
    async def stored(agent: AgentClient) -> bool:
        tiers = (await agent.stats()).tiers
        return all(tiers[tier].stored_tokens >= ROUNDS * WHOLE for tier in ("ssd", "shared"))

    _until(partial(ask, replica.agent, stored))


def _until(condition: Any) -> None:
    deadline = time.monotonic() + SETTLED_S
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailed(f"not within {SETTLED_S} s")
        time.sleep(0.1)


def _report(report: Report, took: Seconds) -> None:
    for name, seconds in took.items():
        ms = median_interval([1e3 * one for one in seconds])
        report.add(f"{TOKENS:,}-token prompt, TTFT, {name}", ms.median, "ms", ms.spread)
    for ours, other in ((SSD, HOST), (SSD, COLD), (SSD, FILE), (AHEAD, HOST)):
        ratio = paired_ratios(took[ours], took[other])
        report.add(f"{TOKENS:,}-token prompt, {ours} / {other}", ratio.median, "", ratio.spread)
    report.note(
        f"storage: {ROUNDS} prompts; first an engine with our tiers, then one with SGLang's backend. Before "
        "each read from disk the page cache is dropped; both wait until all is there."
    )
