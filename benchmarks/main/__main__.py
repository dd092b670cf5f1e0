"""`python -m benchmarks.main [--only NAME] [--engine NAME] [--profile]`: the table, or a profile instead."""

import sys
from types import ModuleType
from typing import Annotated

import typer

from benchmarks.main import fifth_turn, memory, requests, second_turn, streams, tokenized
from benchmarks.main.profile import LOADS
from benchmarks.main.profile import profile as run_profile
from benchmarks.report import Report
from benchmarks.servers import ServerFailed
from engine_adapters.up.errors import UpError

SCENARIOS: dict[str, ModuleType] = {
    "requests": requests,
    "streams": streams,
    "tokenized": tokenized,
    "fifth_turn": fifth_turn,
    "memory": memory,
    "second_turn": second_turn,
}


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"run of {', '.join(SCENARIOS)}; default: all")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="vllm, or sglang: then what needs real engines, and nothing else")
    ] = "vllm",
    profile: Annotated[bool, typer.Option(help=f"profile instead, under {', '.join(LOADS)}")] = False,
) -> None:
    if unknown := set(only or ()) - SCENARIOS.keys():
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(SCENARIOS)}")
    if profile:
        run_profile(only or list(LOADS))
        return
    if engine != "vllm":
        sys.exit(_on(engine))
    report = Report("main", partial=bool(only))
    for name in only or SCENARIOS:
        try:
            SCENARIOS[name].measure(report)
        except (ServerFailed, UpError) as error:  # the others' figures took minutes, too
            report.note(f"{name}: not measured: {error}")
    sys.exit(report.finish())


def _on(engine: str) -> int:
    report = Report(f"main-{engine}")
    try:
        second_turn.measure(report, engine)
    except (ServerFailed, UpError) as error:
        report.note(f"second_turn: not measured: {error}")
    return report.finish()


if __name__ == "__main__":
    typer.run(main)
