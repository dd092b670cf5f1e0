"""Scenario: 2 KB chats with a new last message each, tokenized and routed by what lies where.

Beside it the same chats through the plain passthrough, and their new text encoded by a process of its own:
what the gateway does cannot cost less than both.
"""

from benchmarks.main.encoder import Encoded, EncodeProcess, encode_process
from benchmarks.main.rig import (
    TEST_CORE,
    Rig,
    await_prefixes,
    passthrough,
    running_rig,
    tokenizer_folder,
    tokenizing_gateway,
)
from benchmarks.main.wrk import Samples, repeat
from benchmarks.report import Report
from benchmarks.stats import median_interval, paired_ratios

CONNECTIONS = (1, 64)
REPEATS = 8
ENCODED = 1000


def measure(report: Report) -> None:
    """Interleaved repeats at each number of connections."""
    with (
        running_rig(tokenizing_gateway, passthrough) as rig,
        encode_process(tokenizer_folder(), TEST_CORE) as encoder,
    ):
        await_prefixes(rig.contenders[0])
        for connections in CONNECTIONS:
            at = f"{connections} connection{'s' * (connections > 1)}"
            _measure_at(rig, encoder, report, connections, at)
        rig.tell(report, "tokenized (the encoder is one of the others)")


def _measure_at(rig: Rig, encoder: EncodeProcess, report: Report, connections: int, at: str) -> None:
    ours, plain = Samples(), Samples()
    encoded: list[Encoded] = []
    for _ in range(REPEATS):
        repeat(rig.contenders[0], connections, ours, seen=False)
        repeat(rig.contenders[1], connections, plain, seen=False)
        encoded.append(encoder.encode(ENCODED))
    alone = [each.cpu_us for each in encoded]
    ratio = paired_ratios(ours.cpu, [a + b for a, b in zip(plain.cpu, alone, strict=True)])
    report.add(
        "CPU a request, 2 KB chat, tokenized and routed / "
        f"(plain FastAPI passthrough + encode of its new text), {at}",
        ratio.median,
        spread=ratio.spread,
    )
    parts = {
        "tokenized and routed": ours.cpu,
        "the same through the passthrough": plain.cpu,
        "encode of its new text": alone,
    }
    for name, values in parts.items():
        cpu = median_interval(values)
        report.add(f"CPU a request, {name}, {at}", cpu.median, "µs", cpu.spread)
