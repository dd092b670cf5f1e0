"""Scenario: streamed chats, one SSE event each 10 ms, on a number of connections at once."""

import asyncio
from dataclasses import dataclass, field

from benchmarks.main.rig import Rig
from benchmarks.main.sse_client import stream
from benchmarks.report import Report
from benchmarks.servers import Server
from benchmarks.stats import median_interval, paired_ratios

CONNECTIONS = (1, 64)
REPEATS = 6
STREAMS, EVENTS = 3, 100
"""Streams a connection and events a stream: about three seconds a repeat."""


@dataclass
class Samples:
    """One server's repeats, in µs."""

    cpu: list[float] = field(default_factory=list)
    first_event: list[float] = field(default_factory=list)


def measure(rig: Rig, report: Report) -> None:
    """Interleaved repeats at each number of connections."""
    for connections in CONNECTIONS:
        servers = [rig.backend, *rig.contenders]
        samples = {server.name: Samples() for server in servers}
        for _ in range(REPEATS):
            for server in servers:
                asyncio.run(_repeat(server, connections, samples[server.name]))
        direct = samples.pop(rig.backend.name)
        _report(report, f"{connections} connection{'s' * (connections > 1)}", samples, direct)


async def _repeat(server: Server, connections: int, samples: Samples) -> None:
    await stream(server, connections, 1, 10)
    before = server.process.cpu_seconds()
    result = await stream(server, connections, STREAMS, EVENTS)
    samples.cpu.append((server.process.cpu_seconds() - before) / result.events * 1e6)
    samples.first_event += [seconds * 1e6 for seconds in result.first_event_s]


def _report(report: Report, at: str, samples: dict[str, Samples], direct: Samples) -> None:
    ratio = paired_ratios(samples["gateway"].cpu, samples["passthrough"].cpu)
    report.add(f"CPU a streamed chunk / plain FastAPI passthrough, {at}", ratio.median, spread=ratio.spread)
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
