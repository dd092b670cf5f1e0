"""`python -m benchmarks.vllm`: vLLM with our tiers in it. Takes about 15 minutes; wants a quiet machine."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.report import Report
from benchmarks.servers import HOME
from benchmarks.stats import median_interval, paired_ratios
from benchmarks.tiers.data import drop_caches
from benchmarks.vllm.rig import HOST, Engine, place, prompts
from engine_adapters.up.crew import Crew

ROUNDS = 7
PAIRS = 11
DECODE_TOKENS = 100
OWN_ID = "bench-own-tiering"
PARTS = ("cold", "decode", "hits", "shared")


def main(
    folder: Annotated[Path, typer.Option(help="On the disk to measure; made and removed.")] = HOME
    / "bench-vllm",
    rounds: Annotated[int, typer.Option(help="Repeats of each hit.")] = ROUNDS,
    pairs: Annotated[int, typer.Option(help="Pairs of cold prompts, and of decoded answers.")] = PAIRS,
    only: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PARTS)}.")] = None,
) -> None:
    report, wanted = Report("vllm", partial=bool(only)), set(only or PARTS)
    if not drop_caches():
        report.note("the page cache could not be dropped: reads may have come from memory")
    with place(folder) as crew:
        if wanted & {"cold", "decode"}:
            ours, off = ours_on_ssd(crew, folder), Engine(crew, folder, "off", {})
            if "cold" in wanted:
                cold(report, ours, off, pairs)
            if "decode" in wanted:
                decode(report, ours, off, pairs)
            ours.end()
            off.end()
        if "hits" in wanted:
            transfer = json.dumps(own_tiering(folder / "fs", HOST))
            ours = ours_on_ssd(crew, folder)
            theirs = Engine(crew, folder, "theirs", {}, [f"--kv-transfer-config={transfer}"])
            hits(report, ours, theirs, rounds)
            ours.end()
            theirs.end()
            Path(f"/dev/shm/vllm_offload_{OWN_ID}.mmap").unlink(missing_ok=True)  # theirs leave it
        if "shared" in wanted:
            tiers = {"host": HOST, "shared": {"url": str(folder / "shared")}}
            shared_hits(report, Engine(crew, folder, "shared", tiers), rounds)
    sys.exit(report.finish())


def ours_on_ssd(crew: Crew, folder: Path) -> Engine:
    return Engine(
        crew,
        folder,
        "ours",
        {"host": HOST, "ssd": {"path": str(folder / "ssd"), "cap": 8 << 30, "free_floor": 0}},
    )


def own_tiering(folder: Path, host_bytes: int) -> dict[str, Any]:
    """vLLM's own tiering, as `--kv-transfer-config` takes it."""
    return {
        "kv_connector": "OffloadingConnector",
        "engine_id": OWN_ID,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "OwnTiering",
            "spec_module_path": "benchmarks.vllm.own_tiering",
            "offload_prompt_only": False,
            "cpu_bytes_to_use": host_bytes,
            "secondary_tiers": [{"type": "fs", "root_dir": str(folder)}],
        },
    }


def cold(report: Report, ours: Engine, off: Engine, pairs: int) -> None:
    """Prompts that nobody has seen, on both by turns."""
    asked = prompts(1)
    for engine in (ours, off):
        engine.ttft(next(asked), cached=0)  # the first one warms the engine up
    times: dict[Engine, list[float]] = {ours: [], off: []}
    for number in range(pairs):
        for engine in (ours, off) if number % 2 else (off, ours):
            times[engine].append(engine.ttft(next(asked), cached=0))
            engine.settle()
    ratio = paired_ratios(times[ours], times[off])
    report.add("cold TTFT, tiers on / off", ratio.median, spread=ratio.spread)
    for engine, name in ((ours, "on"), (off, "off")):
        seconds = median_interval(times[engine])
        report.add(f"cold TTFT, tiers {name}", 1e3 * seconds.median, "ms", spread=_ms(seconds.spread))


def decode(report: Report, ours: Engine, off: Engine, pairs: int) -> None:
    """One answer beside a stream of prompts, whose pages are stored all the while."""
    asked = prompts(2, tokens=500)
    rates: dict[Engine, list[float]] = {ours: [], off: []}
    for engine in (ours, off):
        engine.decode_rate(asked, DECODE_TOKENS)  # the first one warms the engine up
    for number in range(pairs):
        for engine in (ours, off) if number % 2 else (off, ours):
            rates[engine].append(engine.decode_rate(asked, DECODE_TOKENS))
            engine.settle()
    ratio = paired_ratios(rates[ours], rates[off])
    name = "decode throughput beside a stream of prompts, tiers"
    report.add(f"{name} on / off", ratio.median, spread=ratio.spread)
    for engine, mode in ((ours, "on"), (off, "off")):
        rate = median_interval(rates[engine])
        report.add(f"{name} {mode}", rate.median, "tokens/s", spread=rate.spread)


def hits(report: Report, ours: Engine, theirs: Engine, rounds: int) -> None:
    """The same prompts from `gpu`, `host` and `ssd`, and through vLLM's own tiering from its files."""
    asked = prompts(3)
    theirs.ttft(next(asked), cached=0)
    times: dict[str, list[float]] = {name: [] for name in ("cold", "gpu", "host", "ssd", "fs")}
    for _ in range(rounds):
        prompt = next(asked)
        times["cold"].append(ours.ttft(prompt, cached=0))
        theirs.ttft(prompt, cached=0)
        ours.settle()
        times["gpu"].append(ours.ttft(prompt))
        ours.forget()
        times["host"].append(ours.ttft(prompt))
        for engine, name in ((ours, "ssd"), (theirs, "fs")):
            engine.forget(host=True)
            drop_caches()
            times[name].append(engine.ttft(prompt))
    _hits(report, times, {"host": "host hit", "ssd": "ssd hit"})
    ratio = paired_ratios(times["ssd"], times["fs"])
    report.add("TTFT ssd hit / vLLM's own tiering with its fs tier", ratio.median, spread=ratio.spread)
    fs = median_interval(times["fs"])
    report.add("TTFT vLLM's own fs hit", 1e3 * fs.median, "ms", spread=_ms(fs.spread))


def shared_hits(report: Report, engine: Engine, rounds: int) -> None:
    """The same from a shared folder, on an engine without an ssd."""
    asked = prompts(4)
    engine.ttft(next(asked), cached=0)
    times: dict[str, list[float]] = {name: [] for name in ("cold", "gpu", "shared")}
    for _ in range(rounds):
        prompt = next(asked)
        times["cold"].append(engine.ttft(prompt, cached=0))
        engine.settle()
        times["gpu"].append(engine.ttft(prompt))
        engine.forget(host=True)
        drop_caches()
        times["shared"].append(engine.ttft(prompt))
    _hits(report, times, {"shared": "shared (posix) hit"})


def _hits(report: Report, times: dict[str, list[float]], names: dict[str, str]) -> None:
    """Each kind of hit, against `gpu` and against cold of the same round."""
    first = next(iter(names.values()))
    for kind in ("cold", "gpu"):
        seconds = median_interval(times[kind])
        report.add(f"TTFT {kind}, beside the {first}", 1e3 * seconds.median, "ms", _ms(seconds.spread))
    for kind, name in names.items():
        dropped = "" if kind == "host" else ", page cache dropped"
        seconds = median_interval(times[kind])
        report.add(f"TTFT {name}", 1e3 * seconds.median, "ms", _ms(seconds.spread))
        ratio = paired_ratios(times[kind], times["gpu"])
        report.add(f"TTFT {name} / gpu hit{dropped}", ratio.median, spread=ratio.spread)
        ratio = paired_ratios(times[kind], times["cold"])
        report.add(f"TTFT {name} / cold", ratio.median, spread=ratio.spread)


def _ms(spread: tuple[float, float]) -> tuple[float, float]:
    return 1e3 * spread[0], 1e3 * spread[1]


if __name__ == "__main__":
    typer.run(main)
