"""Scenario: resident memory of a tokenizing gateway that sees one new prompt after the other."""

from http.client import HTTPConnection

from benchmarks.main.rig import await_prefixes, running_rig, tokenizing_gateway
from benchmarks.main.wrk import load, unseen
from benchmarks.report import Report
from benchmarks.servers import Server

HALF = 50_000
CONNECTIONS, SLICE_SECONDS = 8, 5
MB = 1e6


def measure(report: Report) -> None:
    """Twice 50,000 chats of 2 KB with unseen messages; default settings."""
    with running_rig(tokenizing_gateway) as rig:
        gateway = rig.contenders[0]
        await_prefixes(gateway)
        sizes = [gateway.process.rss_bytes() / MB]
        sent = 0
        for _ in range(2):
            goal = sent + HALF
            while sent < goal:
                sent += load(gateway, CONNECTIONS, SLICE_SECONDS, unseen()).requests
            sizes.append(gateway.process.rss_bytes() / MB)
        index = _metric(gateway, "hpkv_index_bytes") / MB
        blocks = _metric(gateway, "hpkv_index_blocks")
        rig.tell(report, "memory")
    start, half, end = sizes
    report.add("RSS that the last 50,000 of 100,000 unique prompts add", (end - half) / half * 100, "%")
    report.add("RSS after 100,000 unique prompts", end, "MB")
    report.add("RSS at start", start, "MB")
    report.add("memory that the index has reserved", index, "MB")
    report.note(f"memory: {sent:,} prompts were sent; the index then held {blocks:,.0f} blocks.")


def _metric(server: Server, name: str) -> float:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"{name}{{"))
