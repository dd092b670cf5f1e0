"""Scenario: 2 KB chats, not streamed, as fast as a number of connections goes (closed loop, wrk)."""

import json
import subprocess
from dataclasses import dataclass, field

from benchmarks.main.rig import FOLDER, Rig
from benchmarks.report import Report
from benchmarks.servers import Server, ServerFailed, debian_tool
from benchmarks.stats import median_interval, paired_ratios

CONNECTIONS = (1, 64)
REPEATS = 8
SECONDS, WARM_SECONDS = 2, 1


@dataclass
class Samples:
    """One server's repeats, in µs."""

    cpu: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)


def measure(rig: Rig, report: Report) -> None:
    """Interleaved repeats at each number of connections."""
    for connections in CONNECTIONS:
        servers = [rig.backend, *rig.contenders]
        samples = {server.name: Samples() for server in servers}
        for _ in range(REPEATS):
            for server in servers:
                _repeat(server, connections, samples[server.name])
        direct = samples.pop(rig.backend.name)
        _report(report, f"{connections} connection{'s' * (connections > 1)}", samples, direct)


def load(server: Server, connections: int, seconds: int) -> dict[str, float]:
    """One run of wrk: requests, seconds, p50_us, p99_us. Raises ServerFailed if any request failed."""
    command = [debian_tool("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s"]
    command += ["-s", str(FOLDER / "wrk.lua"), server.url]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    if result["failed"] or not result["requests"]:
        raise ServerFailed(f"{server.name}: {result['failed']} of {result['requests']} requests failed")
    return result


def _repeat(server: Server, connections: int, samples: Samples) -> None:
    load(server, connections, WARM_SECONDS)
    before = server.process.cpu_seconds()
    result = load(server, connections, SECONDS)
    samples.cpu.append((server.process.cpu_seconds() - before) / result["requests"] * 1e6)
    samples.p50.append(result["p50_us"])
    samples.p99.append(result["p99_us"])


def _report(report: Report, at: str, samples: dict[str, Samples], direct: Samples) -> None:
    base = samples["passthrough"].cpu
    ratio = paired_ratios(samples["gateway"].cpu, base)
    report.add(
        f"CPU a request, 2 KB chat, not streamed / plain FastAPI passthrough, {at}",
        ratio.median,
        spread=ratio.spread,
    )
    for name, ours in samples.items():
        cpu = median_interval(ours.cpu)
        report.add(f"CPU a request, {name}, {at}", cpu.median, "µs", cpu.spread)
        for label in ("p50", "p99"):
            pairs = zip(getattr(ours, label), getattr(direct, label), strict=True)
            added = median_interval([through - alone for through, alone in pairs])
            report.add(f"added {label}, {name}, {at}", added.median, "µs", added.spread)
