"""`python -m benchmarks.e2e`: the whole system. Takes about 15 minutes; wants a quiet machine."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import httpx2
import typer

from benchmarks.e2e import agent, multi_turn, prefetch, storage
from benchmarks.peers import PeerMissing
from benchmarks.report import Report
from benchmarks.servers import HOME, ServerFailed
from engine_adapters.errors import EngineError
from engine_adapters.up.errors import UpError

PARTS: dict[str, Callable[[Report, str, Path], None]] = {
    "storage": storage.measure,
    "prefetch": prefetch.measure,
    "agent": agent.measure,
    "multi_turn": multi_turn.measure,
}
OF_ENGINE = {"vllm": ("prefetch", "agent", "multi_turn"), "sglang": ("storage", "multi_turn")}
FAILURES = (ServerFailed, UpError, PeerMissing, EngineError, httpx2.HTTPError, subprocess.TimeoutExpired)
"""After which the other parts are still worth measuring."""


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"of {', '.join(PARTS)}; default: the engine's")
    ] = None,
    engine: Annotated[str, typer.Option(help="vllm or sglang")] = "vllm",
    folder: Annotated[Path, typer.Option(help="for what is stored; made and removed")] = HOME / "bench-e2e",
) -> None:
    if unknown := set(only or ()) - PARTS.keys():
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(PARTS)}")
    if engine not in OF_ENGINE:
        raise typer.BadParameter(f"{engine}: choose from {', '.join(OF_ENGINE)}")
    name = "e2e" if engine == "vllm" else f"e2e-{engine}"
    report = Report(name, partial=bool(only))
    for part in only or OF_ENGINE[engine]:
        folder.mkdir(parents=True)
        try:
            PARTS[part](report, engine, folder)
        except FAILURES as error:  # the others' figures took minutes, too
            report.note(f"{part}: not measured: {error}")
        finally:
            shutil.rmtree(folder)
    sys.exit(report.finish())


if __name__ == "__main__":
    typer.run(main)
