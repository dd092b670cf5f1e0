"""Scenario: streamed chats, one SSE event each 10 ms, on a number of connections at once.

One connection is 100 events a second, so what a server does while idle (probes, timers) weighs on each event
there. The goal holds for all of it; the same less the idle part is printed beside it, to tell them apart.
"""

import asyncio
import time
from dataclasses import dataclass, field

from benchmarks.main.rig import Rig, gateway, passthrough, running_rig, vllm_router
from benchmarks.main.sse_client import stream
from benchmarks.report import Report
from benchmarks.servers import Server
from benchmarks.stats import median_interval, paired_ratios

CONNECTIONS = (1, 64)
REPEATS = 14
STREAMS, EVENTS = 1, 100
"""Streams a connection and events a stream: a second a repeat, so that a pair sees the same machine."""
IDLE_SECONDS = 10


@dataclass
class Samples:
    """One server's repeats, in µs."""

    cpu: list[float] = field(default_factory=list)
    cpu_less_idle: list[float] = field(default_factory=list)
    first_event: list[float] = field(default_factory=list)


def measure(report: Report) -> None:
    """Interleaved repeats at each number of connections."""
    with running_rig(gateway, passthrough, vllm_router) as rig:
        idle = _idle_rates(rig)
        for server in rig.contenders:
            report.add(f"idle CPU, {server.name}", idle[server.name] * 1e3, "ms/s")
        for connections in CONNECTIONS:
            servers = [rig.backend, *rig.contenders]
            samples = {server.name: Samples() for server in servers}
            for _ in range(REPEATS):
                for server in servers:
                    asyncio.run(_repeat(server, connections, idle, samples[server.name]))
            direct = samples.pop(rig.backend.name)
            _report(report, f"{connections} connection{'s' * (connections > 1)}", samples, direct)
        rig.tell(report, "streams")


def _idle_rates(rig: Rig) -> dict[str, float]:
    """CPU seconds a second of each server while nobody asks it anything."""
    servers = [rig.backend, *rig.contenders]
    before = [server.process.cpu_seconds() for server in servers]
    time.sleep(IDLE_SECONDS)
    return {
        server.name: (server.process.cpu_seconds() - start) / IDLE_SECONDS
        for server, start in zip(servers, before, strict=True)
    }


async def _repeat(server: Server, connections: int, idle: dict[str, float], samples: Samples) -> None:
    await stream(server, connections, 1, 10)
    started, before = time.perf_counter(), server.process.cpu_seconds()
    result = await stream(server, connections, STREAMS, EVENTS)
    cpu = server.process.cpu_seconds() - before
    idle_cpu = idle[server.name] * (time.perf_counter() - started)
    samples.cpu.append(cpu / result.events * 1e6)
    samples.cpu_less_idle.append((cpu - idle_cpu) / result.events * 1e6)
    samples.first_event += [seconds * 1e6 for seconds in result.first_event_s]


def _report(report: Report, at: str, samples: dict[str, Samples], direct: Samples) -> None:
    ratio = paired_ratios(samples["gateway"].cpu, samples["passthrough"].cpu)
    report.add(f"CPU a streamed chunk / plain FastAPI passthrough, {at}", ratio.median, spread=ratio.spread)
    less_idle = paired_ratios(samples["gateway"].cpu_less_idle, samples["passthrough"].cpu_less_idle)
    name = f"CPU a streamed chunk less idle CPU / the same of the passthrough, {at}"
    report.add(name, less_idle.median, spread=less_idle.spread)
    for name, ours in samples.items():
        cpu = median_interval(ours.cpu)
        report.add(f"CPU a streamed chunk, {name}, {at}", cpu.median, "µs", cpu.spread)
        through, alone = median_interval(ours.first_event), median_interval(direct.first_event)
        report.add(
            f"added p50 to the first event, {name}, {at}",
            through.median - alone.median,
            "µs",
            (through.low - alone.high, through.high - alone.low),
        )
