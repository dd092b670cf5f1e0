"""Scenario: 2 KB chats, not streamed, as fast as a number of connections goes."""

from benchmarks.main.rig import gateway, passthrough, running_rig, vllm_router
from benchmarks.main.wrk import Samples, repeat
from benchmarks.report import Report
from benchmarks.stats import median_interval, paired_ratios

CONNECTIONS = (1, 64)
REPEATS = 8


def measure(report: Report) -> None:
    """Interleaved repeats at each number of connections."""
    with running_rig(gateway, passthrough, vllm_router) as rig:
        for connections in CONNECTIONS:
            servers = [rig.backend, *rig.contenders]
            samples = {server.name: Samples() for server in servers}
            for _ in range(REPEATS):
                for server in servers:
                    repeat(server, connections, samples[server.name], seen=True)
            direct = samples.pop(rig.backend.name)
            _report(report, f"{connections} connection{'s' * (connections > 1)}", samples, direct)
        rig.tell(report, "requests")
    report.note("Latencies are of a closed loop: at 64 connections they are mostly the wait for one core.")


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
