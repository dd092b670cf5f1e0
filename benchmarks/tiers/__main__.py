"""`python -m benchmarks.tiers`: the tiers' figures. Takes about 10 minutes and 40 GB of disk, given back."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.report import Report
from benchmarks.servers import HOME
from benchmarks.tiers import host, matching, restart, ssd

PARTS = ("host", "match", "restart", "ssd")


def main(
    folder: Annotated[Path, typer.Option(help="On the disk to measure; made and removed.")] = HOME
    / "bench-tiers",
    only: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PARTS)}.")] = None,
) -> None:
    report = Report("tiers", partial=bool(only))
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists; name a new folder")
    folder.mkdir(parents=True)
    try:
        wanted = only or list(PARTS)
        if "host" in wanted:
            host.measure(report)
        if "match" in wanted:
            matching.measure(report, folder / "match")
        if "restart" in wanted:
            restart.measure(report, folder)
        if "ssd" in wanted:
            ssd.measure(report, folder)
    finally:
        shutil.rmtree(folder)
    sys.exit(report.finish())


if __name__ == "__main__":
    typer.run(main)
