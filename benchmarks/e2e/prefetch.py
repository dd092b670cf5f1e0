"""Scenario: a prompt on slow shared storage, which the gateway was told of a moment before it comes."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx2
import zmq.asyncio

from benchmarks.e2e import fronts, replicas
from benchmarks.e2e.ttft import ttft
from benchmarks.engines import MODEL
from benchmarks.report import Report
from benchmarks.servers import Server, ServerFailed
from benchmarks.stats import median_interval, paired_ratios
from benchmarks.tiers.data import drop_caches
from engine_adapters.agent.client import AgentClient
from engine_adapters.replica import LocalReplica
from tests.cache.stores.posix.mount import Mount

TOKENS = 4000
WHOLE = TOKENS // replicas.BLOCK * replicas.BLOCK
AHEAD_S = 0.3
DELAY_S, WIDTH = 0.02, 8
"""Of each operation on the folder, and how many delays there are at a time."""
KEPT_S = 5
"""For the request that comes; the next round wants the room."""
ROUNDS = 7
SETTLED_S = 120
FIGURE = f"TTFT of a {TOKENS:,}-token prompt on shared, prefetched 300 ms ahead"
BOUND = "1.2 × host hit where the load takes up to 300 ms, else (load − 300 ms + host hit) × 1.15"

T = TypeVar("T")


def measure(report: Report, engine: str, folder: Path) -> None:
    """Each round has a prompt of its own: cold, then from `host`, from `shared`, and prefetched."""
    host: list[float] = []
    shared: list[float] = []
    ahead: list[float] = []
    with (
        _slow(folder) as mount,
        replicas.running(engine, folder, 3 * TOKENS, 3 * TOKENS, count=1, shared=mount.path) as (replica,),
        fronts.gateway(engine, [replica]) as front,
    ):
        for number in range(ROUNDS + 1):
            prompt = random.Random(number).choices(range(1000, 40000), k=TOKENS)
            mount.tell("delay 0")
            before = _stored(replica)
            ttft(front.port, prompt, 0)
            _until(partial(_stored, replica), before + WHOLE)
            _leave(front, replica, prompt, "host")
            host.append(ttft(front.port, prompt, WHOLE))
            mount.tell(f"delay {DELAY_S}")
            _leave(front, replica, prompt, "shared")
            shared.append(ttft(front.port, prompt, WHOLE))
            _leave(front, replica, prompt, "shared")
            begun = time.monotonic()
            _prefetch(front, prompt)
            time.sleep(max(begun + AHEAD_S - time.monotonic(), 0))
            ahead.append(ttft(front.port, prompt, WHOLE))
    _report(report, host[1:], shared[1:], ahead[1:])  # the first round warms up


@contextlib.contextmanager
def _slow(folder: Path) -> Iterator[Mount]:
    mount = Mount(folder / "stored", folder / "slow")
    try:
        mount.tell(f"width {WIDTH}")
        yield mount
    finally:
        mount.close()


def _leave(front: Server, replica: LocalReplica, prompt: list[int], tier: str) -> None:
    """Have the prompt in this tier and in none above it, and the gateway know that."""
    httpx2.post(f"{replica.url}/reset_prefix_cache", timeout=60).raise_for_status()
    if tier == "shared":
        _agent(replica, lambda agent: agent.clear("host", timeout_s=60))
    # vLLM tells of the reset with the events of the next request.
    body = {"model": MODEL, "prompt": [1], "max_tokens": 1}
    httpx2.post(f"{replica.url}/v1/completions", json=body, timeout=60).raise_for_status()
    _until(partial(_held, front, prompt), {tier: WHOLE})
    drop_caches()


def _stored(replica: LocalReplica) -> int:
    """Tokens that the shared store has taken."""

    async def stored(agent: AgentClient) -> int:
        return (await agent.stats()).tiers["shared"].stored_tokens

    return _agent(replica, stored)


def _held(front: Server, prompt: list[int]) -> dict[str, int]:
    """Tier → tokens of the prompt, as the gateway believes."""
    answer = httpx2.post(f"{front.url}/v1/route", json={"model": MODEL, "prompt": prompt}, timeout=60)
    (candidate,) = answer.raise_for_status().json()["candidates"]
    return {tier: tokens for tier, tokens in candidate["held_tokens"].items() if tokens}


def _until(state: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + SETTLED_S
    while (now := state()) != wanted:
        if time.monotonic() > deadline:
            raise ServerFailed(f"after {SETTLED_S} s there is {now} and not {wanted}")
        time.sleep(0.05)


def _agent(replica: LocalReplica, call: Callable[[AgentClient], Awaitable[T]]) -> T:
    """One conversation with the replica's agent."""

    async def talk() -> T:
        with zmq.asyncio.Context() as context:
            async with AgentClient(replica.agent, context, timeout_s=30) as client:
                return await call(client)

    return asyncio.run(talk())


def _prefetch(front: Server, prompt: list[int]) -> None:
    body = {"model": MODEL, "prompt": prompt, "ttl_s": KEPT_S}
    httpx2.post(f"{front.url}/v1/cache/prefetch", json=body, timeout=60).raise_for_status()


def _bound(host: float, shared: float) -> float:
    load = shared - host
    return 1.2 * host if load <= AHEAD_S else 1.15 * (load - AHEAD_S + host)


def _report(report: Report, host: list[float], shared: list[float], ahead: list[float]) -> None:
    bounds = [_bound(*pair) for pair in zip(host, shared, strict=True)]
    for name, seconds in (
        (FIGURE, ahead),
        (BOUND, bounds),
        ("TTFT of the same prompt in host", host),
        ("TTFT of the same prompt on shared, not prefetched", shared),
    ):
        ms = median_interval([1e3 * one for one in seconds])
        report.add(name, ms.median, "ms", ms.spread)
    ratio = paired_ratios(ahead, host)
    report.add("TTFT of a prompt prefetched 300 ms ahead / host hit", ratio.median, "", ratio.spread)
    report.note(
        f"prefetch: each operation on the shared folder, a FUSE mount, takes {1e3 * DELAY_S:.0f} ms longer, "
        f"{WIDTH} at a time; the load is what a hit there takes longer than one in host."
    )
